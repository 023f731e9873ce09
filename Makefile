# What a newcomer types. Every target sets up .venv by itself, and again only when a requirement has changed.
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS)
REQUIREMENTS := pyproject.toml constraints.txt
SWAPS := outputs/studies/swaps
EXAMS := exam_norm exam_placement exam_pos exam_attn exam_ffn

.DEFAULT_GOAL := help
.PHONY: help setup report exams test lint format clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: .venv/.installed ## install into .venv; PIP_ARGS="--index-url URL" for another build of torch

report: .venv/.installed ## train the study `swaps` where it is not finished, then print and write its report
	$(BIN)/anatomy-train study=swaps || test $$? -eq 1
	$(BIN)/anatomy-report $(SWAPS) --out $(SWAPS)/report --figures

exams: .venv/.installed ## put every part into its exam, skipping what is finished, then print and write the five cards
	for exam in $(EXAMS); do $(BIN)/anatomy-train study=$$exam || test $$? -eq 1 || exit; done
	$(BIN)/anatomy-report outputs $(EXAMS:%=--study %) --out outputs/exams --figures

test: .venv/.installed-test ## run the tests
	$(BIN)/python -m pytest -n auto

lint: .venv/.installed-lint ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.installed-lint ## put the code into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and caches; outputs stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("anatomy needs Python 3.11 or newer; type make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

.venv/.installed: $(REQUIREMENTS) | .venv/bin/python
	$(INSTALL) --editable .
	touch $@

.venv/.installed-test: $(REQUIREMENTS) | .venv/bin/python
	$(INSTALL) --editable '.[test]'
	touch $@ .venv/.installed

.venv/.installed-lint: $(REQUIREMENTS) | .venv/bin/python
	$(INSTALL) --editable '.[lint]'
	touch $@ .venv/.installed
