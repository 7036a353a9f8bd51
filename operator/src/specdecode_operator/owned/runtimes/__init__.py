"""How is a resource translated for a runtime that is not this project's?"""
