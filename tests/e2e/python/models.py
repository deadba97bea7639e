#!/usr/bin/env python3
# models.py - transformers models with make_invariant: masks, caches, compilers, copies, changes.
#
# Every supported call must have the bits of an equivalent call; every other one must be rejected
# with a clear message. Control: the stock model, or the same call without the tested feature.
# SPDX-License-Identifier: Apache-2.0
"""Tests of what a model with Invar's kernels accepts and keeps."""
import copy
import io
import pickle
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from torch import nn

import invar
import invar.torch
from invar.torch import make_invariant
from invariant import FAMILIES, SIZES, bits, build

REFUSED = NotImplementedError


class Case(unittest.TestCase):
    """A batch, and shared assertions."""

    def setUp(self):
        torch._dynamo.reset()
        torch.manual_seed(3)
        self.ids = torch.randint(0, 160, (4, 10))
        self.mask = torch.ones(4, 10, dtype=torch.bool)
        self.mask[1, :3] = False
        self.mask[2, 7:] = False

    def same(self, one, other):
        self.assertTrue(torch.equal(bits(one), bits(other)))

    def differ(self, one, other):
        self.assertFalse(torch.equal(bits(one), bits(other)))

    @torch.no_grad()
    def logits(self, model, **more):
        return model(input_ids=self.ids, **more).logits


class Masks(Case):
    """Padding masks are read at each call, and must have the shape of the ids."""

    def test_changed_in_place(self):
        for family in FAMILIES:
            model = make_invariant(build(family).eval())
            for run in (model, torch.compile(model, backend="aot_eager")):
                mask = torch.ones(4, 10, dtype=torch.bool)
                first = self.logits(run, attention_mask=mask, use_cache=False)
                mask[:, 4] = False
                second = self.logits(run, attention_mask=mask, use_cache=False)
                self.same(second, self.logits(model, attention_mask=mask.clone()))
                self.differ(second, first)

    def test_after_inference_mode(self):
        model = make_invariant(build("qwen3"))
        for made in (True, False):
            with torch.inference_mode(made):
                mask = self.mask.clone()
            with torch.inference_mode():
                wanted = model(self.ids, attention_mask=mask).logits.clone()
            logits = model(self.ids, attention_mask=mask).logits
            logits.sum().backward()
            self.same(logits, wanted)

    def test_types(self):
        model = make_invariant(build("llama").eval())
        wanted = self.logits(model, attention_mask=self.mask)
        for dtype in (torch.int64, torch.int32, torch.uint8):
            self.same(self.logits(model, attention_mask=self.mask.to(dtype)), wanted)
        for wrong in (torch.zeros(4, 10), torch.ones(4, 10), torch.zeros(4, 10).bfloat16()):
            with self.assertRaisesRegex(REFUSED, "bool or integers"):
                self.logits(model, attention_mask=wrong)
            with self.assertRaisesRegex(REFUSED, "bool or integers"):
                model(self.ids, wrong)  # mask by position

    def test_shapes(self):
        for family in FAMILIES:
            model = make_invariant(build(family).eval())
            for shape in ((1, 10), (4, 9), (4, 11), (3, 10), (8, 10), (10, 4), (4, 1, 10, 10)):
                for dtype in (torch.bool, torch.int64):
                    with self.assertRaisesRegex(REFUSED, r"\(4, 10\)", msg=shape):
                        self.logits(model, attention_mask=torch.ones(shape, dtype=dtype))

    def test_packed_positions(self):
        packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]])
        for family in FAMILIES:
            model = make_invariant(build(family).eval())
            for cache in (True, False):
                with self.assertRaisesRegex(REFUSED, "packed"):
                    self.logits(model, position_ids=packed, use_cache=cache)
                with self.assertRaisesRegex(REFUSED, "packed"):
                    model(self.ids, None, packed, use_cache=cache)
                self.same(self.logits(model, position_ids=torch.arange(10)[None], use_cache=cache),
                          self.logits(model))

    def test_not_causal(self):
        model = make_invariant(build("qwen3").eval())
        for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
            with self.assertRaises((REFUSED, torch._dynamo.exc.Unsupported)):
                self.logits(run, is_causal=False, use_cache=False)


class Caches(Case):
    """A cache must have exactly the computed keys."""

    def test_static(self):
        for family in FAMILIES:
            model = make_invariant(build(family).eval())
            for mask in (None, self.mask, torch.ones(4, 10, dtype=torch.int64)):
                for length in (10, 32):
                    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
                    with self.assertRaisesRegex(REFUSED, "StaticCache"):
                        self.logits(model, attention_mask=mask, past_key_values=cache)
            with self.assertRaisesRegex(REFUSED, "StaticCache"):
                model.generate(self.ids, max_new_tokens=3, do_sample=False, pad_token_id=0,
                               cache_implementation="static")

    def test_others(self):
        class Rounded(transformers.Cache):
            """Stands for that of generate(cache_implementation="quantized")."""

        model = make_invariant(build("llama").eval())
        with self.assertRaisesRegex(REFUSED, "Rounded"):
            self.logits(model, past_key_values=Rounded(layers=[]))

    def test_dynamic(self):
        """Splits of any length over a given cache, with bool masks that grow in place."""
        for family in FAMILIES:
            model = make_invariant(build(family).eval())
            positions = (self.mask.cumsum(1) - 1).clamp(min=0)
            whole = self.logits(model, attention_mask=self.mask, position_ids=positions)
            for ends in ((4, 10), (1, 2, 9, 10), (9, 10)):
                cache, at, pieces = transformers.DynamicCache(config=model.config), 0, []
                for end in ends:
                    pieces.append(model(
                        self.ids[:, at:end], attention_mask=self.mask[:, :end],
                        position_ids=positions[:, at:end], past_key_values=cache).logits)
                    at = end
                self.same(torch.cat(pieces, 1)[self.mask], whole[self.mask])


class Compiled(Case):
    """torch.compile of complete models."""

    def test_models(self):
        for family in FAMILIES:
            for format in (None, "fp8"):
                model = build(family)
                model = make_invariant(model.bfloat16() if format else model, format)
                for mask in (None, self.mask):
                    with self.subTest(family, format=format, masked=mask is not None):
                        self.trained(model, {"attention_mask": mask, "use_cache": False})

    def trained(self, model, more):
        torch._dynamo.reset()
        results = []
        for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
            for size in (4, 2):
                model.zero_grad()
                cut = {**more, "attention_mask": None if more["attention_mask"] is None
                       else more["attention_mask"][:size]}
                out = run(self.ids[:size], labels=self.ids[:size], **cut)
                out.loss.backward()
                results.append([out.logits, *(p.grad.clone() for p in model.parameters())])
        for mine, compiled in zip(results[:2], results[2:]):
            for one, other in zip(mine, compiled):
                self.same(one, other)
        self.differ(results[0][1], results[1][1])

    def test_positions(self):
        """A compiler cannot see whether positions are packed."""
        model = make_invariant(build("qwen3").eval())
        run = torch.compile(model, backend="aot_eager", fullgraph=True)
        positions = torch.arange(10).repeat(4, 1)
        with self.assertRaisesRegex(Exception, "attention_mask"):
            self.logits(run, position_ids=positions, use_cache=False)
        self.same(self.logits(run, position_ids=positions, attention_mask=self.mask,
                              use_cache=False),
                  self.logits(model, attention_mask=self.mask, position_ids=positions))


class Copies(Case):
    """Copies and files of a model compute like it; other models do not change."""

    def test_copies_and_files(self):
        for family in FAMILIES:
            for format in (None, "int4"):
                model = build(family, moe_intermediate_size=32).eval()
                stock = self.logits(model)
                model = make_invariant(model.bfloat16() if format else model, format)
                wanted = self.logits(model, attention_mask=self.mask)  # in a format, codes are kept
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                               torch.load(file, weights_only=False)):
                    self.same(self.logits(copied, attention_mask=self.mask), wanted)
                    self.assertEqual(str(type(copied)), str(type(model)))
                    with torch.no_grad():
                        copied.get_output_embeddings().weight.neg_()
                        copied.model.layers[0].self_attn.q_proj.weight.neg_()
                    self.differ(self.logits(copied, attention_mask=self.mask), wanted)
                self.same(self.logits(model, attention_mask=self.mask), wanted)
                if format is None:
                    self.differ(stock, self.logits(model))

    def test_another_process(self):
        model = make_invariant(build("qwen3").eval())
        with tempfile.TemporaryDirectory() as folder:
            torch.save((model, self.ids, self.logits(model)), f"{folder}/m.pt")
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", (
                "import sys, torch\n"
                "model, ids, wanted = torch.load(sys.argv[1], weights_only=False)\n"
                "assert torch.equal(model(ids).logits, wanted)\n"), f"{folder}/m.pt"],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            model.save_pretrained(folder)
            again = type(build("qwen3")).from_pretrained(folder).eval()
        self.assertNotEqual(again.config._attn_implementation, "invar")
        self.same(self.logits(make_invariant(again)), self.logits(model))

    def test_shared_config(self):
        config = transformers.Qwen3Config(**SIZES)
        before, mine = (transformers.Qwen3ForCausalLM(config).eval() for _ in range(2))
        wanted = self.logits(before)
        make_invariant(mine)
        after = transformers.Qwen3ForCausalLM(config)
        for model in (before, after):
            self.assertIs(model.config, config)
            self.assertEqual(config._attn_implementation, "sdpa")
        self.same(self.logits(before), wanted)
        holders = [m.config for m in mine.modules() if hasattr(m, "config")]
        self.assertTrue(all(one is mine.config for one in holders))

    def test_codes(self):
        """Codes made in inference mode work in a backward pass; copies make new ones."""
        model = make_invariant(build("qwen3").bfloat16(), "fp8").requires_grad_(False)
        with torch.inference_mode():
            wanted = model(self.ids).logits.clone()
        weight = model.model.layers[0].mlp.up_proj.weight
        kept = weight._invar_codes
        embedded = model.get_input_embeddings()(self.ids).requires_grad_()
        out = model(inputs_embeds=embedded).logits
        self.same(out, wanted)
        self.assertIs(weight._invar_codes, kept)
        out.sum().backward()
        self.assertTrue(bool(embedded.grad.any()))
        again = pickle.loads(pickle.dumps(weight))
        self.assertEqual(getattr(again, "_invar_codes").codes, [])


class Changes(Case):
    """Changes of a model before and after make_invariant."""

    def test_resized(self):
        for family in FAMILIES:
            model = make_invariant(build(family).eval())
            model.resize_token_embeddings(170, mean_resizing=False)
            with self.assertRaisesRegex(REFUSED, "lm_head came later"):
                self.logits(model)
            make_invariant(model)
            alone = model(self.ids[2:3]).logits[0]
            self.same(self.logits(model)[2], alone)
            self.assertEqual(alone.shape[-1], 170)

    def test_added(self):
        model = make_invariant(build("qwen3").eval())
        layer = model.model.layers[1].self_attn
        layer.q_proj = nn.Sequential(layer.q_proj, nn.Linear(64, 64))
        for run in (model, model.model):
            with self.assertRaisesRegex(REFUSED, "self_attn.q_proj.1 came later"):
                run(self.ids)
        make_invariant(model)
        self.same(self.logits(model)[3], model(self.ids[3:]).logits[0])

    def test_replaced_before(self):
        class Scaled(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        hooked, scaled = build("qwen3"), build("llama")
        norm = hooked.model.norm
        norm.forward = lambda x, old=norm.forward: 2 * old(x)
        scaled.lm_head = Scaled(64, 160, bias=False)
        for model, words in ((hooked, "model.norm"), (scaled, "lm_head")):
            with self.assertRaisesRegex(REFUSED, f"forward of {words}"):
                make_invariant(model)
            self.assertNotEqual(model.config._attn_implementation, "invar")

    def test_other_attention(self):
        model = make_invariant(build("llama").eval())
        model.set_attn_implementation("sdpa")
        with self.assertRaisesRegex(REFUSED, "sdpa again"):
            self.logits(model)
        wanted = self.logits(make_invariant(model))
        self.same(self.logits(make_invariant(model)), wanted)  # a second call changes nothing

    def test_outputs(self):
        moe, dense = (make_invariant(build(f).eval()) for f in ("qwen3_moe", "qwen3"))
        for model, what in ((moe, "router_logits"), (moe, "attentions"), (dense, "attentions")):
            with self.assertRaisesRegex(REFUSED, what):
                self.logits(model, **{f"output_{what}": True})
            self.logits(model, **{f"output_{what}": False})
        moe.config.output_router_logits = True
        with self.assertRaisesRegex(REFUSED, "router_logits"):
            self.logits(moe)
        self.assertEqual(len(dense(self.ids, output_hidden_states=True).hidden_states), 3)

    def test_heads_have_no_format(self):
        config = transformers.Qwen3Config(**SIZES, num_labels=3, pad_token_id=0)
        model = transformers.Qwen3ForSequenceClassification(config).bfloat16().eval()
        make_invariant(model, "fp8")
        formats = {name: m._invar_format for name, m in model.named_modules()
                   if isinstance(m, nn.Linear)}
        self.assertIsNone(formats.pop("score"))
        self.assertEqual(set(formats.values()), {"fp8"})
        self.same(self.logits(model)[1], model(self.ids[1:2]).logits[0])

    def test_autocast(self):
        model = make_invariant(build("qwen3").eval())
        wanted = self.logits(model)
        with torch.autocast(self.ids.device.type, dtype=torch.bfloat16):
            self.same(self.logits(model), wanted)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    unittest.main(argv=sys.argv[:1])
