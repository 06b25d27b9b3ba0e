<?php
// consumer.php, with the extension curl
function call(string $verb, array $body): array
{
    while (true) {
        $after = 1;
        $request = curl_init(getenv('QUEUE_URL') . "/queues/parcels/$verb");
        curl_setopt_array($request, [
            CURLOPT_POSTFIELDS => json_encode($body, JSON_THROW_ON_ERROR),
            CURLOPT_HTTPHEADER => ['Authorization: Bearer ' . getenv('QUEUE_TOKEN'), 'Content-Type: application/json'],
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_TIMEOUT => 70,
            CURLOPT_HEADERFUNCTION => function ($request, string $line) use (&$after): int {
                if (stripos($line, 'Retry-After:') === 0) {
                    $after = max(1, (int) substr($line, 12));
                }
                return strlen($line);
            },
        ]);
        $raw = curl_exec($request);
        $status = curl_getinfo($request, CURLINFO_HTTP_CODE);
        if ($raw !== false && $status === 200) {
            return json_decode($raw, true, 512, JSON_THROW_ON_ERROR)['messages'];
        }
        if ($raw !== false && !in_array($status, [429, 502, 503, 504], true)) {
            throw new RuntimeException($raw);
        }
        sleep($after); // no response; it is safe to send the same request again
    }
}

function pack_parcel(array $parcel): void
{
    if (empty($parcel['order'])) {
        throw new InvalidArgumentException('a parcel without an order');
    }
    echo "packed {$parcel['order']}\n";
}

while (true) {
    $packed = $failed = [];
    foreach (call('pull', ['n' => 10, 'wait' => 60, 'lease' => '1m']) as $message) {
        $claim = ['id' => $message['id'], 'fence' => $message['fence']];
        try {
            pack_parcel($message['body']);
            $packed[] = $claim;
        } catch (Throwable $error) {
            $failed[] = $claim + ['reason' => $error->getMessage()];
        }
    }
    if ($packed) {
        call('ack', ['messages' => $packed]);
    }
    if ($failed) {
        call('retry', ['messages' => $failed]);
    }
}
