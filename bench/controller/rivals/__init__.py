"""Policies that others serve with, written anew from what is published of how they behave."""
