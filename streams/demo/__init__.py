"""`tidewheel demo`: real records through a real Kafka, with a check of the results."""
