"""Loading models: fake, without allocation, from files as users write them."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from autosp_inspector.target.errors import TargetError, UserCodeError
from autosp_inspector.target.load import build_real, load_target
from autosp_inspector.target.loaded import LoadedTarget, TargetRecipe
from autosp_inspector.target.real_builder import RealBuilder
from autosp_inspector.target.specification import recognise
from tests.support.user_models import TINY_MODEL, write_model

SAMPLES = Path(__file__).parents[2] / "samples"
BUILD = """
    def build(vocab: int = 50):
        return Net(vocab)
"""


def load(target: Path | str, **options: object) -> LoadedTarget:
    arguments = options.pop("arguments", {})
    assert isinstance(arguments, dict)
    return load_target(
        TargetRecipe(recognise(str(target)), arguments=tuple(arguments.items()), **options)  # type: ignore[arg-type]
    )


def num_parameters(loaded: LoadedTarget) -> int:
    return sum(parameter.numel() for parameter in loaded.module.parameters())


@pytest.mark.parametrize(
    ("name", "billions", "dtype"),
    [
        ("gpt.py", 0.136, torch.float32),
        ("llama.py", 1.236, torch.bfloat16),
        ("hf_llama.py", 8.030, torch.bfloat16),
    ],
)
def test_samples_build_at_full_size_without_memory(
    name: str, billions: float, dtype: torch.dtype
) -> None:
    loaded = load(SAMPLES / name)
    parameters = list(loaded.module.parameters())
    assert round(num_parameters(loaded) / 1e9, 3) == billions
    assert {parameter.dtype for parameter in parameters} == {dtype}
    assert all(isinstance(parameter, FakeTensor) for parameter in parameters)
    assert loaded.kwargs.keys() == {"input_ids", "labels"}
    assert all(tensor.shape == (1, 4096) for tensor in loaded.kwargs.values())
    assert all(tensor.dtype == torch.int64 for tensor in loaded.kwargs.values())


@pytest.mark.parametrize("name", ["gpt.py", "llama.py", "hf_llama.py"])
def test_samples_have_a_tiny_form_with_the_same_head_ratio(name: str) -> None:
    real = build_real(
        TargetRecipe(recognise(str(SAMPLES / name))), seed=3, dtype="float64", batch=2, seq=9
    )
    assert real.is_tiny
    assert sum(parameter.numel() for parameter in real.module.parameters()) < 250_000
    output = real.module(*real.args, **real.kwargs)
    loss = output if isinstance(output, torch.Tensor) else output.loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in real.module.parameters())


def test_a_real_model_is_the_same_for_the_same_seed() -> None:
    recipe = TargetRecipe(recognise(str(SAMPLES / "gpt.py")))
    first, second = (build_real(recipe, seed=1, dtype="float32", batch=1, seq=8) for _ in range(2))
    other = build_real(recipe, seed=2, dtype="float32", batch=1, seq=8)
    assert torch.equal(first.kwargs["input_ids"], second.kwargs["input_ids"])
    pairs = zip(first.module.parameters(), second.module.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
    assert not torch.equal(first.kwargs["input_ids"], other.kwargs["input_ids"])


def test_tied_weights_stay_tied_through_a_cast(tmp_path: Path) -> None:
    file = write_model(
        tmp_path,
        TINY_MODEL,
        """
        def build():
            net = Net()
            net.head.weight = net.embed.weight
            return net.to(torch.bfloat16)
        """,
    )
    loaded = load(file, dtype="float16")
    assert loaded.module.head.weight is loaded.module.embed.weight
    assert loaded.module.head.weight.dtype == torch.float16


@pytest.mark.parametrize("name", ["build", "build_model", "get_model", "model"])
def test_the_usual_factory_names_are_found(tmp_path: Path, name: str) -> None:
    file = write_model(tmp_path, TINY_MODEL, f"def {name}(): return Net()")
    loaded = load(file)
    assert loaded.description == f"{file}:{name}"


def test_a_model_instance_and_a_class_serve_as_factories(tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, "model = Net()")
    instance = load(file)
    assert isinstance(instance.module.embed.weight, FakeTensor)
    made = load(f"{file}:Net", arguments={"vocab": "70"})
    assert made.module.embed.num_embeddings == 70


def test_arguments_reach_the_factory(tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, BUILD)
    assert load(file, arguments={"vocab": "99"}).module.embed.num_embeddings == 99


def test_example_inputs_of_the_file_and_of_the_factory(tmp_path: Path) -> None:
    from_file = write_model(
        tmp_path,
        TINY_MODEL,
        BUILD,
        """
        def example_inputs(batch, seq):
            return {"input_ids": torch.zeros(batch, seq, dtype=torch.int64)}
        """,
    )
    loaded = load(from_file, batch=3, seq=5)
    assert {name: tuple(t.shape) for name, t in loaded.kwargs.items()} == {"input_ids": (3, 5)}
    from_factory = write_model(
        tmp_path,
        TINY_MODEL,
        "def build(): return Net(), (torch.zeros(2, 7, dtype=torch.int64),)",
        name="other.py",
    )
    loaded = load(from_factory)
    assert [tuple(tensor.shape) for tensor in loaded.args] == [(2, 7)]
    assert all(isinstance(tensor, FakeTensor) for tensor in loaded.args)


def test_siblings_can_be_imported_and_no_bytecode_is_left(tmp_path: Path) -> None:
    for folder, vocab in (("one", 11), ("two", 22)):
        (tmp_path / folder).mkdir()
        write_model(tmp_path / folder, f"VOCAB = {vocab}", name="sizes.py")
        file = write_model(
            tmp_path / folder,
            TINY_MODEL,
            "from sizes import VOCAB",
            "def build(): return Net(VOCAB)",
        )
        assert load(file).module.embed.num_embeddings == vocab
    assert not list(tmp_path.rglob("__pycache__"))
    assert str(tmp_path / "one") not in sys.path


def test_relative_imports_work_inside_a_package(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    write_model(package, "", name="__init__.py")
    write_model(package, TINY_MODEL, name="net.py")
    file = write_model(package, "from .net import Net", "def build(): return Net(13)")
    assert load(file).module.embed.num_embeddings == 13


def test_a_module_is_found_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "nets"
    package.mkdir()
    write_model(package, TINY_MODEL, BUILD, name="small.py")
    monkeypatch.chdir(tmp_path)
    assert load("nets.small:build").module.embed.num_embeddings == 50


def test_what_the_file_prints_does_not_reach_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write = write_model(
        tmp_path, "print('hello')", TINY_MODEL, "def build(): print('x'); return Net()"
    )
    load(write)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "hello\nx\n"


def test_a_sequence_beyond_learned_positions_is_refused() -> None:
    with pytest.raises(
        TargetError, match="20000 tokens is longer than the 16384 learned positions"
    ):
        load(SAMPLES / "gpt.py", seq=20000)


def test_the_default_sequence_fits_the_model() -> None:
    loaded = load(SAMPLES / "gpt.py", arguments={"max_positions": "512"})
    assert loaded.seq == 512
    assert loaded.kwargs["input_ids"].shape == (1, 512)


# -- files written for CUDA ------------------------------------------------------------


def test_a_file_written_for_cuda_loads_on_the_cpu(tmp_path: Path) -> None:
    file = write_model(
        tmp_path,
        """
        import torch
        assert torch.cuda.is_available(), "needs a GPU"
        torch.cuda.set_device(0)
        torch.cuda.manual_seed(1)
        torch.set_default_device("cuda")
        device = torch.device("cuda", torch.cuda.current_device())
        """,
        TINY_MODEL,
        """
        def build():
            net = Net().cuda().to(device).to("cuda:0", dtype=torch.bfloat16)
            net.register_buffer("scale", torch.ones(3, device="cuda", pin_memory=False))
            torch.cuda.synchronize()
            return net

        def example_inputs(batch, seq):
            return (torch.zeros(batch, seq, dtype=torch.int64, device=0).cuda(non_blocking=True),)
        """,
    )
    loaded = load(file, seq=4)
    devices = {tensor.device.type for tensor in loaded.module.state_dict().values()}
    assert devices == {"cpu"}
    assert loaded.args[0].device.type == "cpu"
    assert not torch.cuda.is_available()
    assert torch.get_default_device() == torch.device("cpu")


def test_packages_for_gpus_may_be_missing_until_they_are_called(tmp_path: Path) -> None:
    head = """
        from flash_attn import flash_attn_func
        from liger_kernel.transformers import LigerRMSNorm
        import flash_attn.bert_padding as padding

        class Norm(LigerRMSNorm): ...
    """
    loads = write_model(tmp_path, head, TINY_MODEL, BUILD)
    assert load(loads).module.embed.num_embeddings == 50
    calls = write_model(tmp_path, head, "def build(): return padding.pad_input(1)", name="b.py")
    with pytest.raises(UserCodeError) as caught:
        load(calls)
    assert "flash_attn.bert_padding.pad_input was called, but flash_attn is not installed" in str(
        caught.value
    )
    assert str(calls) in "\n".join(caught.value.traceback_lines)
    assert "flash_attn" not in sys.modules


def test_functions_of_flash_attn_are_there_without_the_package(tmp_path: Path) -> None:
    head = """
        from flash_attn import flash_attn_func
        import torch
    """
    build = """
        def build():
            q = torch.ones(1, 3, 2, 8)
            assert flash_attn_func(q, q, q, causal=True).shape == q.shape
            return Net(7)
    """
    assert load(write_model(tmp_path, head, TINY_MODEL, build)).module.embed.num_embeddings == 7


def test_a_file_that_handles_a_missing_package_keeps_its_own_way(tmp_path: Path) -> None:
    file = write_model(
        tmp_path,
        """
        try:
            import flash_attn
            vocab = 1
        except ImportError:
            vocab = 31
        """,
        TINY_MODEL,
        "def build(): return Net(vocab)",
    )
    assert load(file).module.embed.num_embeddings == 31


# -- Hugging Face configurations ---------------------------------------------------------


def test_a_70b_configuration_loads_and_shrinks() -> None:
    recipe = TargetRecipe(recognise(str(SAMPLES / "configs" / "llama-3.1-70b.json")))
    loaded = load_target(recipe)
    assert round(num_parameters(loaded) / 1e9, 1) == 70.6
    real = build_real(recipe, seed=0, dtype="float64", batch=1, seq=8)
    config = real.module.config
    assert (config.num_attention_heads, config.num_key_value_heads) == (64, 8)
    assert config.num_hidden_layers == 2
    assert next(real.module.parameters()).dtype == torch.float64


def test_configuration_fields_can_be_set() -> None:
    path = SAMPLES / "configs" / "llama-3.1-8b.json"
    loaded = load(path, arguments={"num_hidden_layers": "1"})
    assert len(loaded.module.model.layers) == 1
    with pytest.raises(TargetError, match="no field 'num_layers'.*num_hidden_layers"):
        load(path, arguments={"num_layers": "1"})


def test_an_unknown_model_type_names_the_closest(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "lama"}))
    with pytest.raises(TargetError, match="model_type 'lama' is unknown.*Closest: llama"):
        load(path)


# -- mistakes ----------------------------------------------------------------------------


def test_a_file_without_a_factory_lists_what_it_has(tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, "def make(): ...", "import os")
    with pytest.raises(TargetError) as caught:
        load(file)
    message = str(caught.value)
    assert "has no factory (build, build_model, get_model, model)" in message
    assert "Found: Net (torch.nn.Module), make()" in message
    assert "os" not in message.partition("Found:")[2].split()


def test_a_factory_of_another_name_is_suggested(tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, BUILD)
    with pytest.raises(TargetError, match="has no 'biuld'. Did you mean .*model.py:build?"):
        load(f"{file}:biuld")


def test_a_factory_that_raises_shows_the_users_lines_only(tmp_path: Path) -> None:
    file = write_model(
        tmp_path,
        """
        def inner():
            raise ValueError("width must be even\\nsecond line")

        def build():
            return inner()
        """,
    )
    with pytest.raises(UserCodeError) as caught:
        load(file)
    assert str(caught.value) == (
        f"{file}:2: the factory build raised ValueError: width must be even"
    )
    frames = [line.strip() for line in caught.value.traceback_lines if "File" in line]
    assert frames == [f'File "{file}", line 5, in build', f'File "{file}", line 2, in inner']


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def build(): return 3", "the factory returned a value of type int"),
        ("def build(): pass", "the factory returned None"),
        ("def build(): return 1, 2, 3", r"the factory returned a tuple of \(int, int, int\)"),
        ("build = 'x'\nmodel = 3", "has no factory"),
        ("def build(: pass", "is not valid Python"),
        ("import surely_missing_package", "imports surely_missing_package, which is not installed"),
        ("import sys\nsys.exit(3)", "importing the file raised SystemExit: 3"),
        ("1 / 0", "importing the file raised ZeroDivisionError"),
        (
            "def build():\n    import surely_missing",
            "imports surely_missing, which is not installed",
        ),
        (
            "import torch\ndef build(): return torch.randn(2)[0].item()",
            "reads the value of a tensor",
        ),
    ],
)
def test_wrong_files_give_one_clear_line(tmp_path: Path, body: str, message: str) -> None:
    file = write_model(tmp_path, body)
    with pytest.raises(TargetError, match=message) as caught:
        load(file)
    assert "\n" not in str(caught.value)


def test_a_model_whose_inputs_cannot_be_guessed_asks_for_them(tmp_path: Path) -> None:
    file = write_model(
        tmp_path,
        """
        from torch import nn
        class Image(nn.Module):
            def forward(self, pixels): return pixels
        def build(): return Image()
        """,
    )
    with pytest.raises(TargetError, match="needs pixels, which cannot be guessed.*example_inputs"):
        load(file)


def test_inputs_that_do_not_fit_forward_are_refused(tmp_path: Path) -> None:
    file = write_model(
        tmp_path, TINY_MODEL, BUILD, "def example_inputs(batch, seq): return {'idx': 3}"
    )
    with pytest.raises(TargetError, match="does not fit Net.forward"):
        load(file)


def test_a_large_model_without_a_tiny_form_is_not_built_for_real(tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, "def build(): return Net(1_000_000, 400)")
    with pytest.raises(TargetError, match="0.8 billion parameters.*tiny: bool = False"):
        build_real(TargetRecipe(recognise(str(file))), seed=0, dtype="float32", batch=1, seq=8)


def test_a_builder_can_be_sent_to_another_process() -> None:
    recipe = TargetRecipe(recognise(str(SAMPLES / "gpt.py")))
    builder = RealBuilder(recipe, seed=0, dtype="float64", batch=2, seq=9)
    built = pickle.loads(pickle.dumps(builder))()
    assert built.args == ()
    assert built.kwargs["input_ids"].shape == (2, 9)
    assert torch.equal(built.kwargs["labels"], builder().kwargs["labels"])
    assert next(built.module.parameters()).dtype == torch.float64


def test_floating_inputs_are_cast_as_the_parameters_are(tmp_path: Path) -> None:
    file = write_model(
        tmp_path,
        """
        import torch
        def build(): return torch.nn.Linear(3, 3)
        def example_inputs(batch, seq): return {"input": torch.ones(batch, seq, 3)}
        """,
    )
    recipe = TargetRecipe(recognise(str(file)), dtype="bfloat16", seq=5)
    assert load_target(recipe).kwargs["input"].dtype == torch.bfloat16
    real = build_real(recipe, seed=0, dtype="float64", batch=1, seq=5)
    assert real.kwargs["input"].dtype == torch.float64


def test_a_compiled_model_is_unwrapped(tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, "def build(): return torch.compile(Net())")
    assert type(load(file).module).__name__ == "Net"


def test_labels_can_be_ignored_across_borders_and_in_a_whole_shard() -> None:
    recipe = TargetRecipe(recognise(str(SAMPLES / "gpt.py")))
    builder = RealBuilder(recipe, seed=0, dtype="float64", batch=2, seq=10, ignored_shards=2)
    ignored = builder().kwargs["labels"] == -100
    assert ignored.tolist() == [
        [False] * 3 + [True] * 7,
        [False] * 5 + [True] * 5,
    ]


def test_the_example_is_the_whole_model_not_its_first_layer(tmp_path: Path) -> None:
    layers = "from torch import nn\nclass Block(nn.Module): ...\nclass Model(nn.Module): ...\n"
    path = tmp_path / "model.py"
    path.write_text(layers)
    with pytest.raises(TargetError, match=r"as in .*model\.py:Model$"):
        load(str(path))
    path.write_text(layers + "def build(): return Model()\ndef main(): ...\n")
    with pytest.raises(TargetError, match=r"as in .*model\.py:build$"):
        load(f"{path}:nofactory")
