"""The description of the endpoints."""

from __future__ import annotations

import re

import msgspec

from backbay_server.apis import ENDPOINTS
from backbay_server.openapi import openapi_document


def test_every_endpoint_is_described():
    paths = openapi_document(ENDPOINTS)["paths"]
    for each in ENDPOINTS:
        operation = paths[re.sub(r":\w+}", "}", each.path)][each.method.lower()]
        assert operation["summary"].endswith("."), each.path
        assert {"400", "401", "404", "500", "503"} <= operation["responses"].keys()


def test_every_reference_has_its_schema():
    text = msgspec.json.encode(openapi_document(ENDPOINTS)).decode()
    schemas = openapi_document(ENDPOINTS)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= schemas.keys()


def test_a_schema_says_what_happens_to_a_field():
    schemas = openapi_document(ENDPOINTS)["components"]["schemas"]
    fields = schemas["CompletionRequest"]["properties"]
    assert fields["prompt"]["x-backbay"] == "taken"
    assert fields["user"]["x-backbay"] == "ignored"
    assert (fields["best_of"]["x-backbay"], fields["best_of"]["enum"]) == ("refused", [None, 0, 1])


def test_a_form_and_the_answers_in_plain_text_are_described():
    document = openapi_document(ENDPOINTS)
    operation = document["paths"]["/v1/audio/transcriptions"]["post"]
    assert operation["requestBody"]["content"].keys() == {"multipart/form-data"}
    answers = operation["responses"]["200"]["content"]
    assert answers.keys() == {
        "application/json",
        "text/event-stream; charset=utf-8",
        "text/plain; charset=utf-8",
    }
    file = document["components"]["schemas"]["TranscriptionRequest"]["properties"]["file"]
    assert (file["contentMediaType"], file["x-backbay"]) == ("application/octet-stream", "taken")
    assert "contentEncoding" not in file


def test_every_field_of_a_request_has_a_use():
    schemas = openapi_document(ENDPOINTS)["components"]["schemas"]
    bodies = [each.body for each in ENDPOINTS if each.body is not None]
    named = msgspec.json.schema_components(bodies)[1]
    missing = [
        f"{name}.{field}"
        for name in named
        for field, schema in schemas.get(name, {}).get("properties", {}).items()
        if "x-backbay" not in schema and "const" not in schema and schema.get("enum") is None
    ]
    assert missing == []


def test_an_answer_whose_fields_a_request_chooses_may_have_few():
    schemas = openapi_document(ENDPOINTS)["components"]["schemas"]
    assert schemas["CompletionFields"]["required"] == []
    assert {"content", "stop_type", "timings"} < set(schemas["CompletionFields"]["properties"])
