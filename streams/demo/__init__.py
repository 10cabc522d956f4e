"""`tidewheel demo`: real records, a real Kafka, a stateful topology, and a check of what came out."""
