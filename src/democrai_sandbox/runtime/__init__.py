"""What runs extensions: who a request is served for, and under which guard."""
