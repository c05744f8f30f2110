"""Protects the layering: algorithms import neither ray nor mlflow, and --help loads nothing heavy."""

import subprocess
import sys


def imported_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_algorithms_import_neither_ray_nor_mlflow():
    code = """
import pkgutil, importlib
for name in ('data', 'lm', 'rewards', 'decoding', 'metrics'):
    package = importlib.import_module(f'prefsel_ray.{name}')
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f'prefsel_ray.{name}.{module.name}')
"""
    assert not {"ray", "mlflow"} & imported_by(code)


def test_the_registry_and_the_command_line_load_nothing_heavy():
    modules = imported_by("import prefsel_ray.rewards, prefsel_ray.cli")
    assert not {"torch", "transformers", "ray", "mlflow", "pyarrow"} & modules
