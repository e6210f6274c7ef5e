"""What is measured. Traces -> Measurements."""
