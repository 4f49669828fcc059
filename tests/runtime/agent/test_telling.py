"""What an agent says at once, and what it keeps for a while."""

from __future__ import annotations

import math

from fairlead.runtime.agent.agent_service import PAUSE_S, Telling
from fairlead.runtime.protocol.messages import ReportBatch, decode_message, encode_message
from fairlead.runtime.protocol.orders import Ended, Metric, Progress, RenewalRequest


def test_of_progress_and_metrics_the_last_word_of_a_second_is_said():
    telling = Telling()
    assert telling.of([Progress(1, 1, 1, 0, 0.0)], 0.0) == [Progress(1, 1, 1, 0, 0.0)]
    for step in range(2, 9):
        words = [Progress(1, 1, step, 0, 9.0), Metric(1, 1, "loss", 1 / step), Progress(2, 1, step, 0, 9.0)]
        assert telling.of(words, step / 10) == []
    assert telling.of([], PAUSE_S) == [Progress(1, 1, 8, 0, 9.0), Metric(1, 1, "loss", 0.125), Progress(2, 1, 8, 0, 9.0)]
    assert telling.of([], 9.0) == []


def test_ends_and_questions_do_not_wait_and_nothing_comes_after_an_end():
    telling = Telling()
    telling.of([Progress(1, 1, 1, 0, 0.0)], 0.0)
    telling.of([Progress(1, 1, 2, 2, 9.0), Metric(1, 1, "loss", 0.5), Progress(2, 1, 7, 0, 1.0)], 0.1)
    assert telling.of([RenewalRequest(2, 1, 1)], 0.2) == [RenewalRequest(2, 1, 1)]
    end = Ended(1, 1, 0, True, 2, 2)
    assert telling.of([end], 0.3) == [Progress(1, 1, 2, 2, 9.0), Metric(1, 1, "loss", 0.5), end]
    assert telling.of([], PAUSE_S) == [Progress(2, 1, 7, 0, 1.0)]


def test_a_loss_that_is_no_number_any_more_travels_too():
    words = ReportBatch(1, (Metric(0, 1, "loss", math.inf), Metric(0, 1, "loss", 0.5)))
    assert decode_message(encode_message(words)) == words


def test_while_nobody_listens_the_last_words_are_kept_for_who_comes():
    telling = Telling()
    for step in range(1, 5):
        assert telling.of([Progress(1, 1, step, 0, 1.0), Metric(1, 1, "loss", 1 / step)], float(step), listened_to=False) == []
    end = Ended(2, 1, 0, False, 9, 9)
    last = [Metric(2, 1, "loss", 0.1), end]
    assert telling.of(last, 5.0, listened_to=False) == last
    assert telling.of([], 6.0) == [Progress(1, 1, 4, 0, 1.0), Metric(1, 1, "loss", 0.25)]
