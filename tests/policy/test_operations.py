"""Resource types, operations and masks."""

from __future__ import annotations

import pytest

from democrai_sandbox.policy import (
    EVERY_ACCESS,
    VALID_OPERATIONS,
    FileAccess,
    NetworkAccess,
    Operation,
    ResourceType,
    file_access,
    http_operation,
    is_valid_operation,
    network_access,
)
from tests.services.rows import rows

VALID = {
    "network": {"connect", "receive", "send"},
    "filesystem": {"read", "create", "modify", "delete", "execute"},
    "system_dependency": {"execute"},
}


@rows("resource_type", ResourceType)
@rows("operation", Operation)
def test_operations_belong_to_resource_types(resource_type, operation):
    """The table of the contract applies to every pair."""
    assert is_valid_operation(resource_type, operation) is (operation.value in VALID[resource_type.value])


def test_tables_cannot_be_changed():
    """A table that determines validity is read-only."""
    with pytest.raises(TypeError):
        VALID_OPERATIONS[ResourceType.NETWORK] = ()


def test_bits_of_the_mask_are_fixed():
    """The native core uses the same numbers."""
    assert {bit.name: bit.value for bit in FileAccess} == {
        "READ": 1,
        "CREATE": 2,
        "MODIFY": 4,
        "DELETE": 8,
        "EXECUTE": 16,
    }
    assert int(EVERY_ACCESS) == 31
    assert {bit.name: bit.value for bit in NetworkAccess} == {"CONNECT": 1, "RECEIVE": 2, "SEND": 4}


def test_mask_of_operations():
    """One operation is one bit, several are combined, none is empty."""
    assert file_access(Operation.DELETE) is FileAccess.DELETE
    assert file_access([Operation.READ, Operation.EXECUTE, Operation.READ]) == 17
    assert file_access([]) == 0
    for operation in VALID_OPERATIONS[ResourceType.FILESYSTEM]:
        assert file_access(operation).name == operation.name


@rows("operation", [Operation.CONNECT, Operation.RECEIVE, Operation.SEND])
def test_network_operations_have_no_bit(operation):
    """A network operation never becomes an empty mask."""
    with pytest.raises(ValueError, match=operation.value):
        file_access(operation)


def test_each_operation_has_its_bit_in_one_of_the_masks():
    """A network operation is one bit of the network mask; a file operation has none there."""
    for operation in VALID_OPERATIONS[ResourceType.NETWORK]:
        assert network_access(operation).name == operation.name
    for operation in VALID_OPERATIONS[ResourceType.FILESYSTEM]:
        with pytest.raises(ValueError, match=operation.value):
            network_access(operation)


@rows("method", ["GET", "HEAD", "OPTIONS", "get", "Head"])
def test_fetching_methods_receive(method):
    """GET, HEAD and OPTIONS need receive, in any ASCII case."""
    assert http_operation(method) is Operation.RECEIVE


@rows(
    "method",
    [
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
        "CONNECT",
        "TRACE",
        "PROPFIND",
        "",
        " GET",
        "GET ",
        "GETX",
        "OPTION\u017f",
        None,
        b"GET",
    ],
)
def test_every_other_method_sends(method):
    """Unknown methods, odd spellings and look-alikes count as sending."""
    assert http_operation(method) is Operation.SEND
