.PHONY: check format test

check:
	ruff check .
	ruff format --check .
	mypy

format:
	ruff check --fix .
	ruff format .

test:
	pytest
