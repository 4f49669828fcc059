"""What an agent says at once, and what it keeps for a while."""

from __future__ import annotations

import math

from fairlead.runtime.agent.agent_service import REPORT_INTERVAL_S, ReportThrottle
from fairlead.runtime.protocol.messages import ReportBatch, decode_message, encode_message
from fairlead.runtime.protocol.orders import Ended, Metric, Progress, RenewalRequest


def test_of_progress_and_metrics_the_last_word_of_a_second_is_said():
    throttle = ReportThrottle()
    assert throttle.add([Progress(1, 1, 1, 0, 0.0)], 0.0) == [Progress(1, 1, 1, 0, 0.0)]
    for step in range(2, 9):
        words = [Progress(1, 1, step, 0, 9.0), Metric(1, 1, "loss", 1 / step), Progress(2, 1, step, 0, 9.0)]
        assert throttle.add(words, step / 10) == []
    assert throttle.add([], REPORT_INTERVAL_S) == [
        Progress(1, 1, 8, 0, 9.0),
        Metric(1, 1, "loss", 0.125),
        Progress(2, 1, 8, 0, 9.0),
    ]
    assert throttle.add([], 9.0) == []


def test_ends_and_questions_do_not_wait_and_nothing_comes_after_an_end():
    throttle = ReportThrottle()
    throttle.add([Progress(1, 1, 1, 0, 0.0)], 0.0)
    throttle.add([Progress(1, 1, 2, 2, 9.0), Metric(1, 1, "loss", 0.5), Progress(2, 1, 7, 0, 1.0)], 0.1)
    assert throttle.add([RenewalRequest(2, 1, 1)], 0.2) == [RenewalRequest(2, 1, 1)]
    end = Ended(1, 1, 0, True, 2, 2)
    assert throttle.add([end], 0.3) == [Progress(1, 1, 2, 2, 9.0), Metric(1, 1, "loss", 0.5), end]
    assert throttle.add([], REPORT_INTERVAL_S) == [Progress(2, 1, 7, 0, 1.0)]


def test_a_loss_that_is_no_number_any_more_travels_too():
    words = ReportBatch(1, (Metric(0, 1, "loss", math.inf), Metric(0, 1, "loss", 0.5)))
    assert decode_message(encode_message(words)) == words


def test_while_nobody_listens_the_last_words_are_kept_for_who_comes():
    throttle = ReportThrottle()
    for step in range(1, 5):
        assert throttle.add([Progress(1, 1, step, 0, 1.0), Metric(1, 1, "loss", 1 / step)], float(step), connected=False) == []
    end = Ended(2, 1, 0, False, 9, 9)
    last = [Metric(2, 1, "loss", 0.1), end]
    assert throttle.add(last, 5.0, connected=False) == last
    assert throttle.add([], 6.0) == [Progress(1, 1, 4, 0, 1.0), Metric(1, 1, "loss", 0.25)]


def test_progress_that_follows_from_the_last_report_is_sent_less_often():
    throttle = ReportThrottle()
    sent = [second for second in range(40) if throttle.add([Progress(1, 1, 4 * second, 0, 4.0)], float(second))]
    assert sent == [0, 10, 20, 30]
    assert throttle.add([Progress(1, 1, 160, 0, 5.0)], 40.0) == [Progress(1, 1, 160, 0, 5.0)]
    assert throttle.add([Progress(1, 1, 164, 0, 5.0)], 41.0) == []
    assert throttle.add([Progress(1, 1, 164, 0, 5.0)], 42.0) == [Progress(1, 1, 164, 0, 5.0)]  # it has stopped
    assert throttle.add([Progress(1, 1, 170, 0, 5.0), Metric(1, 1, "loss", 0.5)], 43.0) == [Metric(1, 1, "loss", 0.5)]
    end = Ended(1, 1, 0, True, 171, 171)
    assert throttle.add([end], 43.1) == [Progress(1, 1, 170, 0, 5.0), end]


def test_progress_that_may_have_been_lost_with_its_stream_is_sent_again():
    throttle = ReportThrottle()
    assert throttle.add([Progress(1, 1, 4, 0, 4.0)], 0.0)
    assert throttle.add([Progress(1, 1, 12, 0, 4.0)], 2.0) == []
    assert throttle.add([], 2.5, connected=False) == []
    assert throttle.add([], 3.0) == [Progress(1, 1, 12, 0, 4.0)]


def test_batch_sizes_are_sent_every_second():
    throttle = ReportThrottle()
    assert [second for second in range(3) if throttle.add([Progress(1, 1, second, 0, 1.0, 32)], float(second))] == [0, 1, 2]
