"""The bench of engines in mode Recommend, small: real engines' text over HTTP, nothing missed."""

from prometheus_client.openmetrics.exposition import generate_latest

from bench.operator import recommending
from bench.operator.busy import engine_metrics
from specdecode_operator.fleet import exposition
from specdecode_operator.fleet.reading import READ, reading_of


def test_the_text_is_that_of_a_busy_engine():
    text = generate_latest(engine_metrics("v1-c").registry).decode()
    assert len(text) > 100 * 1024
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) > 700
    reading = reading_of("p", exposition.read(text, READ))
    assert reading.key.config_hash == "v1-c"
    assert all(cell.accepted <= cell.reached for cell in reading.positions.values())


async def test_every_look_reads_every_engine(monkeypatch):
    monkeypatch.setattr(recommending, "REST_LOOK_S", 2.0)
    figures = await recommending.recommend_share(8, 4, 2.0)
    assert figures["recommend_failures"] == 0
    looks_per_s = figures["recommend_looks_per_s"]
    assert looks_per_s is not None
    assert looks_per_s > 0
    recommended = figures["recommend_recommendations"]
    assert recommended is not None
    assert recommended > 0
