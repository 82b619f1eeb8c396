"""paramiko: SSH keys, key files, known hosts and the client configuration."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    import paramiko
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = paramiko.RSAKey.generate(2048)
    path = os.path.join(folder, "id_rsa")
    key.write_private_key_file(path, password="secret")
    again = paramiko.RSAKey.from_private_key_file(path, password="secret")
    assert again == key and again.get_base64() == key.get_base64()
    try:
        paramiko.RSAKey.from_private_key_file(path)
        locked = "opened"
    except paramiko.PasswordRequiredException:
        locked = "password required"
    signature = key.sign_ssh_data(b"data", "rsa-sha2-256")
    assert again.verify_ssh_sig(b"data", paramiko.Message(signature.asbytes()))

    ed_path = os.path.join(folder, "id_ed25519")
    with open(ed_path, "wb") as file:
        file.write(
            ed25519.Ed25519PrivateKey.from_private_bytes(b"s" * 32).private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
        )
    ed_key = paramiko.Ed25519Key.from_private_key_file(ed_path)
    ecdsa = paramiko.ECDSAKey.generate(bits=256)

    hosts = paramiko.HostKeys()
    hosts.add("example.org", ed_key.get_name(), ed_key)
    known = os.path.join(folder, "known_hosts")
    hosts.save(known)
    assert paramiko.HostKeys(known).check("example.org", ed_key)
    config = paramiko.SSHConfig.from_file(io.StringIO("Host web\n  HostName 192.0.2.1\n  User ann\n  Port 2222\n"))
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.load_host_keys(known)
    client.close()
    message = paramiko.Message()
    message.add_string("hello")
    message.add_int(7)
    message.rewind()
    return {
        "locked": locked,
        "names": [key.get_name(), ed_key.get_name(), ecdsa.get_name()],
        "ed": ed_key.get_base64(),
        "fingerprint": ed_key.fingerprint,
        "config": dict(config.lookup("web")),
        "message": [message.get_text(), message.get_int()],
    }
