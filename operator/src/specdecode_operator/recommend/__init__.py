"""Which table a fleet would decode fastest with, from what it has measured."""
