"""One SQS queue: messages are received, and deleted once they are handled.

Invariant: only `delete_messages` deletes a message. A received message that is not deleted returns when its
visibility timeout is over (Amazon SQS developer guide, "Amazon SQS visibility timeout"). A body that is no
notice is returned as such, so that it can be reported and deleted, not received forever.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from providers.aws import filters
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.aws.notices import parse
from providers.aws.tags import Owner
from providers.notices import QueueMessage

_log = structlog.get_logger("aws.queue")

# SQS's own limits: messages of one call, seconds of a long poll.
BATCH = 10
LONGEST_POLL = 20


class Queues(AwsAccount):
    """Queues by name or URL; the URL of a name is read once."""

    def __init__(self, aws: Aws, owner: Owner) -> None:
        super().__init__(aws, owner)
        self._urls: dict[str, str] = {}

    def receive(self, queue: str, *, wait: int) -> list[QueueMessage]:
        """Up to ten messages, as soon as there is one, else after `wait` seconds none."""
        answer = self._aws.call(
            self._aws.sqs.receive_message,
            QueueUrl=self._url(queue),
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=min(wait, LONGEST_POLL),
        )
        return [
            _message(item.get("ReceiptHandle", ""), item.get("Body", ""))
            for item in answer.get("Messages", [])
        ]

    def delete_messages(self, queue: str, messages: Sequence[QueueMessage]) -> None:
        """Deletes them; one that SQS does not delete comes back."""
        for batch in filters.batches([message.receipt for message in messages], BATCH):
            answer = self._aws.call(
                self._aws.sqs.delete_message_batch,
                QueueUrl=self._url(queue),
                Entries=[
                    {"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(batch)
                ],
            )
            for failed in answer.get("Failed", []):
                _log.warning("message not deleted", queue=queue, code=failed["Code"])

    def _url(self, queue: str) -> str:
        if "://" in queue:
            return queue
        if queue not in self._urls:
            answer = self._aws.call(self._aws.sqs.get_queue_url, QueueName=queue)
            self._urls[queue] = answer["QueueUrl"]
        return self._urls[queue]


def _message(receipt: str, body: str) -> QueueMessage:
    try:
        return QueueMessage(receipt=receipt, body=body, notice=parse(body))
    except ValueError as error:
        return QueueMessage(receipt=receipt, body=body, problem=str(error))
