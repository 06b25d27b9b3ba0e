"""The names of OpenTelemetry's messaging conventions that are used here.

They are still in development, so no stable package has them, and they may be renamed. Taken from version 1.44 of
<https://opentelemetry.io/docs/specs/semconv/messaging/> as of 2026-11-23. What the conventions have no word for stands under `delayq.`.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM: Final = "delayq"
SEND: Final = "send"  # name and type of an operation
PROCESS: Final = "process"

MESSAGING_SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

TASK: Final = "delayq.task"
ATTEMPT: Final = "delayq.attempt"  # from 1
LATENESS: Final = "delayq.lateness"  # seconds
OUTCOME: Final = "delayq.outcome"  # ack, retry, snooze, ask, fail, cancel
CREATED: Final = "delayq.created"  # False, where another job holds the key

SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # bounds that they advise
