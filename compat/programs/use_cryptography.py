"""cryptography: Fernet, AES-GCM, RSA, Ed25519, key derivation and a certificate."""

from __future__ import annotations


def main(folder: str) -> object:
    import datetime
    import os

    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.fernet import Fernet, InvalidToken
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
    from cryptography.x509.oid import NameOID

    box = Fernet(Fernet.generate_key())
    assert box.decrypt(box.encrypt(b"secret")) == b"secret"
    try:
        Fernet(Fernet.generate_key()).decrypt(box.encrypt(b"secret"))
        token = "opened"
    except InvalidToken:
        token = "refused"
    sealed = AESGCM(b"k" * 32).encrypt(b"n" * 12, b"message", b"header")
    digest = hashes.Hash(hashes.SHA256())
    digest.update(b"abc")
    derived = PBKDF2HMAC(hashes.SHA256(), 32, b"salt", 1000).derive(b"password")

    key = rsa.generate_private_key(65537, 2048)
    path = os.path.join(folder, "key.pem")
    with open(path, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"pass"),
            )
        )
    with open(path, "rb") as file:
        again = serialization.load_pem_private_key(file.read(), b"pass")
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)
    key.public_key().verify(again.sign(b"data", pss, hashes.SHA256()), b"data", pss, hashes.SHA256())
    signer = ed25519.Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    try:
        signer.public_key().verify(signer.sign(b"a"), b"b")
        forged = "accepted"
    except InvalidSignature:
        forged = "refused"
    one, two = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    assert one.exchange(ec.ECDH(), two.public_key()) == two.exchange(ec.ECDH(), one.public_key())

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example.org")])
    start = datetime.datetime(2024, 1, 1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=10))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("example.org")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {
        "token": token,
        "sealed": sealed.hex(),
        "digest": digest.finalize().hex(),
        "derived": derived.hex(),
        "signature": signer.sign(b"a").hex(),
        "forged": forged,
        "subject": certificate.subject.rfc4514_string(),
    }
