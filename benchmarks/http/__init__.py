"""Cost of metrics and telemetry, and load of interactive queries.

python -m benchmarks.http cost --records 200000 --rounds 5
python -m benchmarks.http queries --seconds 30 --clients 4 --rate 5000
"""
