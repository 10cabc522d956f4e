"""The suite `memory`: resident memory under steady load with growing keys."""
