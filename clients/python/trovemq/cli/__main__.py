"""`python -m trovemq.cli` is `trovemq`."""

from trovemq.cli import main

main()
