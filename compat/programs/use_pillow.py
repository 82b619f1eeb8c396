"""pillow: drawing, filters, and several image formats."""

from __future__ import annotations


def main(folder: str) -> object:
    import hashlib
    import io
    import os

    from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

    image = Image.new("RGB", (80, 60), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((10, 10, 50, 40), fill=(200, 30, 30))
    draw.ellipse((30, 20, 70, 55), outline="blue", width=3)
    draw.text((12, 12), "Hello", fill="black", font=ImageFont.load_default())

    sizes = {}
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        path = os.path.join(folder, "image." + kind.lower())
        image.save(path, kind)
        with Image.open(path) as again:
            again.load()
            assert again.format == kind
            sizes[kind] = list(again.size)

    with Image.open(os.path.join(folder, "image.png")) as again:
        assert again.convert("RGB").tobytes() == image.tobytes()
    small = image.resize((20, 15), Image.Resampling.LANCZOS).rotate(90, expand=True)
    grey = ImageOps.grayscale(image).filter(ImageFilter.GaussianBlur(2))
    bright = ImageEnhance.Brightness(image).enhance(0.5)
    buffer = io.BytesIO()
    image.save(buffer, "GIF", save_all=True, append_images=[bright], duration=50)
    return {
        "sizes": sizes,
        "small": list(small.size),
        "grey": grey.getpixel((40, 30)),
        "bright": list(bright.getpixel((0, 0))),
        "frames": Image.open(buffer).n_frames,
        "digest": hashlib.sha256(image.tobytes()).hexdigest()[:16],
    }
