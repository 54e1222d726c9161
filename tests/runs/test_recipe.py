"""Recipes: what may stand in them, and what is said where something else does."""

import pytest

from mxbench.attention.methods import METHODS
from mxbench.attention.site import Site
from mxbench.errors import UserError
from mxbench.runs import plan
from mxbench.runs.ablation import sequential
from mxbench.runs.entries import parse_entry
from mxbench.runs.plan import expand
from mxbench.runs.recipe import load, parse, recipe_files


def write(tmp_path, text, name="r.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_recipes_expand():
    files = recipe_files()
    assert {"demo", "smoke"} <= set(files)
    recipes = {name: load(path) for name, path in files.items()}
    plans = {
        name: expand(recipe if recipe.model == "nano" else recipe.model_copy(update={"weights": "random"}), "cpu")
        for name, recipe in recipes.items()
    }
    demo = plans["demo"]
    assert [row.role for row in demo.rows[:3]] == ["reference", "noise_floor", "method"]
    assert {"mxfp4", "nvfp4", "nvfp4-sage", "mxattn", "vc8", "vc4"} <= {row.key for row in demo.rows}
    assert len(demo.prompts) >= 4
    assert {row.key for row in plans["smoke"].rows} >= set(METHODS)


def test_a_negative_prompt_that_a_model_would_ignore_is_refused():
    fields = {"weights": "random:tiny", "methods": ["mxattn"], "sampling": {"negative_prompt": "blurry"}}
    assert expand(parse({"model": "wan2.2", **fields}), "cpu").sampling.negative_prompt == "blurry"
    with pytest.raises(UserError, match="hunyuanvideo takes no negative prompt"):
        expand(parse({"model": "hunyuanvideo", **fields}), "cpu")


def test_the_hybrid_policy_of_the_paper_keeps_layer_0_and_the_last_two_steps():
    recipe = load(recipe_files()["mxattention-table2-wan2.2"]).model_copy(update={"weights": "random"})
    plan = expand(recipe, "cpu")
    assert [row.entry.label for row in plan.rows[2:]] == [
        f"{METHODS[name].label} (random weights)" for name in ("mxfp4", "nvfp4", "nvfp4-sage", "mxattn")
    ]
    exact, method = METHODS["fp16"].spec, METHODS["mxattn"].spec
    schedule = plan.rows[-1].entry.schedule
    for step in range(40):
        for layer in range(40):
            site = Site(expert=int(step > 12), layer=layer, n_layers=40, kind="self", step=step, n_steps=40)
            use = schedule.at(site, 2)
            assert use is not None
            assert use.spec == (exact if layer == 0 or step >= 38 else method)


@pytest.mark.parametrize("model", ["wan2.2", "hunyuanvideo"])
def test_table_3_is_the_sequential_ablation_without_fallback(model):
    recipe = load(recipe_files()[f"mxattention-table3-{model}"])
    rows = expand(recipe.model_copy(update={"weights": "random"}), "cpu").rows
    expected = [parse_entry(entry) for entry in sequential("mxattn")]
    assert [row.key for row in rows if row.role == "method"] == [entry.key for entry in expected]
    for row, entry in zip([row for row in rows if row.role == "method"], expected, strict=True):
        assert row.entry.schedule.id == entry.schedule.id  # what is computed, at every layer and step
        assert row.entry.label == f"{entry.label} (random weights)"
        assert row.entry.flags == entry.flags


def test_the_noise_floor_of_a_real_model_on_a_gpu_is_a_fast_kernel():
    fields = {"methods": ["mxattn"], "sampling": {"steps": 2}}
    assert [row.impl for row in expand(parse(fields), "cpu").rows[:2]] == [("sdpa",), ("reference",)]
    chosen = expand(parse(fields | {"model": "wan2.2", "weights": "random:tiny"}), "cpu")
    assert chosen.rows[1].impl == ("reference",)
    entry = parse_entry("fp16")
    rows = plan._rows(parse(fields | {"model": "wan2.2"}), [entry], "cuda:0", "bfloat16")
    assert rows[1].impl == ("flash",)
    assert rows[1].entry.label == "FP16 by the flash kernel"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methods: [fp16\n", "line 2"),
        ("methods: [fp16]\n\tmodel: nano\n", "line 2"),
        ("title: x\nmethods: [fp16]\nlimits: 3\n", "line 3: unknown key 'limits'; did you mean limit"),
        ("methods: [fp16]\nsampling:\n  step: 3\n", "line 3: unknown key 'step'; did you mean steps"),
        ("methods: [fp16]\nlimit: many\n", "line 2: limit: "),
        ("methods: [fp16]\nlimit: 0\n", "line 2: limit: "),
        ("model: nano\n", "methods is missing"),
        ("methods: []\n", "methods: "),
        ("- fp16\n", "is no recipe"),
        ("", "is no recipe"),
        ("methods: [fp16, {base: mxattn, row_sum: [1]}]\n", "unknown row_sum"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as error:
        expand(load(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value) or "row_sum" in said


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"title: \xe9\n")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"methods": ["mxatn"]}, "unknown method 'mxatn'; did you mean mxattn"),
        ({"methods": ["fp16"], "model": "nanoo"}, "unknown model 'nanoo'; did you mean nano"),
        ({"methods": ["fp16"], "metrics": ["psrn"]}, "unknown metric 'psrn'; did you mean psnr"),
        ({"methods": ["fp16"], "metrics": []}, "no metrics"),
        ({"methods": ["fp16"], "impl": "refrence"}, "unknown impl 'refrence'; did you mean reference"),
        ({"methods": [{"base": "mxattn", "rowsum": "exact"}]}, "unknown field 'rowsum'; did you mean row_sum"),
        ({"methods": [{"base": "mxattn", "q_max": 9}]}, "out of range"),
        ({"methods": [{"base": "mxattn", "kv_tile": 100}]}, "no multiple of 32"),
        ({"methods": [{"row_sum": "exact"}]}, "names no method"),
        ({"methods": [{"name": "x", "rules": []}]}, "no list"),
        ({"methods": [{"name": "x", "rules": [{"use": "fp16", "layer": 0}]}]}, "did you mean layers"),
        ({"methods": [{"name": "x", "rules": [{"use": "fp16", "layers": 9}]}]}, "there is no layer 9"),
        ({"methods": [{"rules": [{"use": "fp16"}]}]}, "has no name"),
        ({"methods": [{"function": "no.such:thing"}]}, "cannot be imported"),
        ({"methods": ["mxfp4", "mxfp4"]}, "two methods are called"),
        ({"methods": [{"name": "fp16", "base": "mxfp4"}]}, "fp16 is redefined"),
        ({"methods": ["fp16"], "noise_floor": "sdpa"}, "both rendered by sdpa"),
        ({"methods": ["fp16"], "reference_impl": "cudnn"}, "the reference cannot be rendered"),
        ({"methods": ["fp16"], "sampling": {"frames": 16}}, "4k + 1, such as 17"),
        ({"methods": ["fp16"], "sampling": {"height": 100}}, "no multiple of 16"),
        ({"methods": ["fp16"], "sampling": {"guidance": [1.0, 2.0, 3.0]}}, "guidance has 3 scales"),
        ({"methods": ["fp16"], "sampling": {"guidance": -1.0}}, "guidance -1.0 is no scale"),
        ({"methods": ["fp16"], "seeds": [-1]}, "gives no seeds"),
        ({"methods": ["fp16"], "prompts": []}, "is empty"),
        ({"methods": ["fp16"], "prompts": "nosuch"}, "nosuch"),
        ({"methods": [3]}, "methods.0"),
    ],
)
def test_a_recipe_is_checked_whole_before_any_time_is_spent(fields, said):
    with pytest.raises(UserError) as error:
        expand(parse(fields))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_prompt_file_beside_the_recipe_is_found(tmp_path):
    (tmp_path / "mine.txt").write_text("one\ntwo\n", encoding="utf-8")
    plan = expand(load(write(tmp_path, "methods: [mxfp4]\nprompts: mine.txt\n")))
    assert [prompt.text for prompt in plan.prompts] == ["one", "two"]


def test_entries_vary_a_method_by_its_axes_and_share_ids_where_nothing_changes():
    plain, varied = parse_entry("mxattn"), parse_entry({"base": "mxattn", "row_sum": "exact"})
    assert varied.schedule.main.spec.row_sum == "exact"
    assert varied.key == "mxattn (row_sum=exact)"
    assert plain.schedule.id != varied.schedule.id
    same = parse_entry({"name": "other", "base": "mxattn", "row_sum": "quantised"})
    assert same.schedule.id == plain.schedule.id
    assert parse_entry({"base": "mxfp4", "q_max": 7.25}).schedule.main.spec.q.scale_rule == "uos"


def test_a_function_is_a_method_marked_unverified_and_known_by_its_source():
    entry = parse_entry({"name": "mine", "function": "fakes:FakeModel"})
    assert entry.schedule.unverified
    assert entry.schedule.main.identity.startswith("fakes:FakeModel#")
    with pytest.raises(UserError, match="leave base and the axes out"):
        parse_entry({"function": "fakes:FakeModel", "base": "mxattn"})


def test_ids_do_not_depend_on_names_paths_or_order():
    one = expand(parse({"methods": ["mxfp4", "mxattn"], "prompts": ["a", "b"], "title": "x"}))
    two = expand(parse({"methods": ["mxattn", {"name": "z", "base": "mxfp4"}], "prompts": ["b", "a"]}))
    ids = [{unit.cell.id for unit in plan.units()} for plan in (one, two)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 8
    other = expand(parse({"methods": ["mxattn", "mxfp4"], "prompts": ["a", "b"], "sampling": {"steps": 3}}))
    assert not ids[0] & {unit.cell.id for unit in other.units()}
