"""boto3: clients with the botocore Stubber, a signed address, and DynamoDB types."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    import boto3
    from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
    from botocore.config import Config
    from botocore.exceptions import ClientError
    from botocore.response import StreamingBody
    from botocore.stub import ANY, Stubber

    session = boto3.session.Session(
        aws_access_key_id="AKIAEXAMPLE", aws_secret_access_key="secret", region_name="eu-west-1"
    )
    s3 = session.client("s3", config=Config(retries={"max_attempts": 1}))
    with Stubber(s3) as stub:
        stub.add_response("list_buckets", {"Buckets": [{"Name": "one"}, {"Name": "two"}]})
        body = StreamingBody(io.BytesIO(b"content"), 7)
        stub.add_response("get_object", {"Body": body, "ContentLength": 7}, {"Bucket": "one", "Key": "k"})
        stub.add_response("put_object", {"ETag": "x"}, {"Bucket": "one", "Key": ANY, "Body": ANY})
        stub.add_client_error("head_bucket", "404")
        buckets = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        path = os.path.join(folder, "object.bin")
        with open(path, "wb") as file:
            file.write(s3.get_object(Bucket="one", Key="k")["Body"].read())
        with open(path, "rb") as file:
            assert file.read() == b"content"
        with open(path, "rb") as file:
            tag = s3.put_object(Bucket="one", Key="new", Body=file)["ETag"]
        try:
            s3.head_bucket(Bucket="none")
            code = ""
        except ClientError as error:
            code = error.response["Error"]["Code"]
        stub.assert_no_pending_responses()
    address = s3.generate_presigned_url("get_object", Params={"Bucket": "one", "Key": "k"}, ExpiresIn=60)

    table = session.resource("dynamodb").Table("items")
    with Stubber(table.meta.client) as stub:
        stub.add_response("get_item", {"Item": {"id": {"S": "a"}, "n": {"N": "5"}}})
        item = table.get_item(Key={"id": "a"})["Item"]
    typed = TypeSerializer().serialize({"a": [1, "x", None]})
    assert TypeDeserializer().deserialize(typed) == {"a": [1, "x", None]}
    return {
        "buckets": buckets,
        "tag": tag,
        "code": code,
        "address": address.split("?")[0],
        "item": {"id": item["id"], "n": int(item["n"])},
        "typed": typed,
        "services": "sqs" in session.get_available_services(),
    }
