"""Take the pictures of the server's page: light, dark and phone, with right predictions.

    make demo                                       # trains the cues in cues/
    pip install playwright pillow                   # and Chromium: apt-get install chromium
    python scripts/screenshots.py cues              # writes docs/images/page-{light,dark,phone}.png

The command serves the cues itself. It writes nothing and ends with an error if the folder has other cues, or if a
prediction on a picture is not marked as right.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service, make_engine
from softcue.serving.settings import ServerSettings

MAX_BYTES = 150_000
CUES = ["reply-form", "tickets", "urgency"]
PICTURES: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": {"width": 1120, "height": 640}, "color_scheme": "light"},
    "page-dark": {"viewport": {"width": 1120, "height": 640}, "color_scheme": "dark"},
    "page-phone": {
        "viewport": {"width": 390, "height": 844},
        "color_scheme": "light",
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
    },
}


def main() -> None:
    """Serve the cues, take the pictures, and write them."""
    parser = argparse.ArgumentParser(description="Take the pictures of the server's page.")
    parser.add_argument("cues", type=Path, help="the folder with the three cues of `softcue demo`")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--output-dir", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("Chromium is not installed; run: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    with serve(arguments.backbone, arguments.cues) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        pictures = {name: take_picture(browser, address, context) for name, context in PICTURES.items()}
        browser.close()
    for name, content in pictures.items():
        if len(content) > MAX_BYTES:
            sys.exit(f"{name} has {len(content):,} bytes, more than {MAX_BYTES:,}")
    for name, content in pictures.items():
        file = arguments.output_dir / f"{name}.png"
        file.write_bytes(content)
        sys.stdout.write(f"{file}: {len(content):,} bytes\n")


@contextmanager
def serve(backbone: str, cues: Path) -> Iterator[str]:
    """The address of a server of these cues on a free port of this machine."""
    settings = ServerSettings()
    service = Service(settings, partial(make_engine, settings, backbone, cues))
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not (server.started and service.state == "ready"):
            if not thread.is_alive() or service.failure is not None:
                sys.exit(f"the server did not start: {service.failure}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


def take_picture(browser: Any, address: str, context: dict[str, Any]) -> bytes:
    """The page with its first example, once every cue has a prediction that is marked as right."""
    page = browser.new_context(**context, reduced_motion="reduce").new_page()
    page.goto(address)
    page.locator("#status").filter(has_text="with a prediction").wait_for()
    names = page.locator(".card h2").all_inner_texts()
    if names != CUES:
        sys.exit(f"the folder has the cues {', '.join(names)}; the pictures show {', '.join(CUES)} of `softcue demo`")
    if page.locator(".card:not(:has(.right))").count():
        sys.exit("a prediction is not marked as right; train the cues again with `softcue demo`")
    page.locator("#rate").filter(has_text=".").wait_for()  # the second reading of the load
    return shrink(page.screenshot(full_page=not context.get("is_mobile")))


def shrink(picture: bytes) -> bytes:
    """A picture with a palette of 128 colours, which a page of text does not miss."""
    from PIL import Image

    shrunk = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(shrunk, "PNG", optimize=True)
    return shrunk.getvalue()


if __name__ == "__main__":
    main()
