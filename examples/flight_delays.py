"""Count delays by airline, flights by airport and rain: the program of `tidewheel demo`, with 336,776 flights.

Flights are keyed by aircraft, so counting by airline or airport repartitions them.
"""

import msgspec

from tidewheel import Serdes, StreamsBuilder

config = {"application_id": "flight-delays"}


class Flight(msgspec.Struct, frozen=True):
    """Fields of a flight needed here; others are ignored."""

    carrier: str
    dest: str
    dep_delay: int | None  # minutes; None if the flight was cancelled


class Weather(msgspec.Struct, frozen=True):
    """An hour's weather at an airport."""

    precip: float  # inches


class Delays(msgspec.Struct, frozen=True):
    """Delays of an airline so far, in minutes."""

    flights: int = 0
    cancelled: int = 0
    minutes: int = 0
    longest: int = 0


def add(_carrier: str, flight: Flight, delays: Delays) -> Delays:
    if flight.dep_delay is None:
        return Delays(delays.flights + 1, delays.cancelled + 1, delays.minutes, delays.longest)
    minutes = delays.minutes + flight.dep_delay
    longest = max(delays.longest, flight.dep_delay)
    return Delays(delays.flights + 1, delays.cancelled, minutes, longest)


def summary(delays: Delays) -> dict[str, float]:
    departed = max(delays.flights - delays.cancelled, 1)
    return {**msgspec.structs.asdict(delays), "mean": round(delays.minutes / departed, 2)}


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    flights = builder.stream("flights", key_serde=str, value_serde=Serdes.json(Flight))
    by_carrier = flights.group_by(lambda flight: flight.carrier, key_serde=str)
    delays = by_carrier.aggregate(Delays, add, store="delays", value_serde=Serdes.json(Delays))
    delays.to_stream().map_values(summary).to("delays-by-carrier", value_serde=Serdes.json())
    by_airport = flights.group_by(lambda flight: flight.dest, key_serde=str)
    by_airport.count(store="arrivals").to_stream().to("arrivals-by-airport", value_serde=int)
    weather = builder.stream("weather", key_serde=str, value_serde=Serdes.json(Weather))
    rainy = weather.filter(lambda hour: hour.precip > 0)
    rainy.group_by_key().count(store="rain").to_stream().to("rain-by-airport", value_serde=int)
    return builder
