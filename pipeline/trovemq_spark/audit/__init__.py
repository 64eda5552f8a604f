"""The checks of the job `audit`, and the reading of delivery events; nothing here knows Spark."""
