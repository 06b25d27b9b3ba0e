<?php
// client.php, with the extension curl
function call(string $method, string $path, ?array $body = null, string $key = ''): array
{
    $headers = ['Authorization: Bearer ' . getenv('QUEUE_TOKEN'), 'Content-Type: application/json'];
    if ($key !== '') {
        $headers[] = "Idempotency-Key: $key";
    }
    $request = curl_init(getenv('QUEUE_URL') . '/' . $path);
    curl_setopt_array($request, [
        CURLOPT_CUSTOMREQUEST => $method,
        CURLOPT_HTTPHEADER => $headers,
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 10,
    ]);
    if ($body !== null) {
        curl_setopt($request, CURLOPT_POSTFIELDS, json_encode($body, JSON_THROW_ON_ERROR));
    }
    $raw = curl_exec($request);
    if ($raw === false) {
        throw new RuntimeException(curl_error($request));
    }
    return [curl_getinfo($request, CURLINFO_HTTP_CODE), json_decode($raw, true, 512, JSON_THROW_ON_ERROR)];
}

$order = ['task' => 'orders.tasks.close_order', 'args' => [42], 'delay' => '30m'];
[$status, $job] = call('POST', 'jobs', $order, bin2hex(random_bytes(16)));
echo "$status {$job['id']}\n";
echo call('GET', "jobs/{$job['id']}")[1]['state'], "\n";
echo call('POST', "jobs/{$job['id']}/cancel", ['reason' => 'paid'])[1]['change'], "\n";
