"""The Processor API: processors, contexts and records."""
