"""Cleans, cuts and fingerprints texts. Rows store fingerprints, so their values must not change."""

from __future__ import annotations

import pytest

from django_delayq import text


@pytest.mark.parametrize("longest", [40, 200, 300, 301, 2_000, 32_768, 100_000])
@pytest.mark.parametrize("surplus", [1, 7, 1_000_000])
def test_a_text_that_is_too_long_is_cut_and_is_no_longer_than_allowed(longest, surplus):
    cut = text.clean("x" * (longest + surplus), longest)
    assert len(cut) <= longest
    assert cut.endswith("…") if longest <= 300 else text.CUT.search(cut)


def test_what_no_database_takes_is_spelled_out():
    assert text.clean("nul \x00 half \ud800 ä") == "nul \\x00 half \\ud800 ä"
    assert text.clean("as it is") == "as it is"


def test_an_error_is_told_by_class_and_place_whatever_its_message_says():
    known = text.error_fingerprint("shop.Refused", "503 for ann@example.com (request 2486054737c7)", "shop:pay")
    same = text.error_fingerprint("shop.Refused", "503 for bob@example.com (request b00e0a54f37d)", "shop:pay")
    assert known == same == "cdff4f76a85e"
    assert known != text.error_fingerprint("shop.Refused", "503", "shop:refund")
    assert known != text.error_fingerprint("shop.Absent", "503", "shop:pay")


def test_an_error_from_no_place_of_the_project_is_told_by_its_message_without_numbers_and_ids():
    known = text.error_fingerprint("shop.Refused", "order 7 at 0xff of 3f2b8c1a-0000-4000-8000-000000000001", "")
    same = text.error_fingerprint("shop.Refused", "order 8 at 0xab of 3f2b8c1a-0000-4000-8000-000000000002", "")
    assert known == same == "d07166254d88"
    assert known != text.error_fingerprint("shop.Refused", "no order", "")


def test_a_text_is_told_by_its_words_without_digits():
    assert text.text_fingerprint("order 17 of shop-a1 failed\nx") == text.text_fingerprint("order 18 of shop-b2 failed")
    assert text.text_fingerprint("order 17 of shop-a1 failed") == "3c0bd4b98920"
    assert text.text_fingerprint("") == ""
