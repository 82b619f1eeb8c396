"""pymongo: BSON, extended JSON, address parsing and lazy objects, without a server."""

from __future__ import annotations


def main(folder: str) -> object:
    import datetime
    import os

    import bson
    from bson import json_util
    from bson.codec_options import CodecOptions
    from bson.decimal128 import Decimal128
    from bson.objectid import ObjectId
    from bson.raw_bson import RawBSONDocument
    from pymongo import ASCENDING, IndexModel, InsertOne, MongoClient, UpdateOne
    from pymongo.uri_parser import parse_uri

    document = {
        "_id": ObjectId("65a000000000000000000001"),
        "name": "caf\u00e9",
        "when": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "nested": {"list": [1, 2.5, None, True]},
        "price": Decimal128("9.99"),
        "pattern": bson.Regex("^a", "i"),
        "data": b"\x00\x01",
    }
    encoded = bson.encode(document)
    assert bson.decode(encoded) == document
    path = os.path.join(folder, "dump.bson")
    with open(path, "wb") as file:
        file.write(encoded + bson.encode({"second": 2}))
    with open(path, "rb") as file:
        count = len(list(bson.decode_file_iter(file)))
    aware = bson.decode(encoded, CodecOptions(tz_aware=True))["when"]
    text = json_util.dumps(document, sort_keys=True)
    assert json_util.loads(text, json_options=json_util.JSONOptions(tz_aware=False)) == document

    client = MongoClient("mongodb://db.example:27018/", connect=False)
    collection = client.shop.items
    uri = parse_uri("mongodb://ann:p%40ss@one.example:1,two.example/shop?replicaSet=rs")
    models = [IndexModel([("name", ASCENDING)], unique=True).document["name"]]
    operations = [repr(InsertOne({"a": 1})), repr(UpdateOne({"a": 1}, {"$set": {"b": 2}}))[:9]]
    client.close()
    return {
        "size": len(encoded),
        "count": count,
        "aware": aware.isoformat(),
        "json": text,
        "raw": RawBSONDocument(encoded)["name"],
        "name": collection.full_name,
        "uri": [[list(node) for node in uri["nodelist"]], uri["password"], uri["database"]],
        "models": models,
        "operations": operations,
        "c": bson.has_c(),
    }
