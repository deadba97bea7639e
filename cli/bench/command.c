/*
 * command.c - the command invar bench: its options, and which benchmark they select.
 *
 * Without --model single ops are measured (bench.c), with --model a whole model (model.c). An
 * option that would have no effect is rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "cli/bench/bench.h"
#ifdef INVAR_LEDGER
#include "cli/bench/model.h"
#endif

#include "base/invar_banned.h"

typedef struct settings {
    invar_option_choice device;
    const char *op;
    int64_t threads;
    bool json;
#ifdef INVAR_LEDGER
    invar_bench_model_options whole; /* without a model single ops are measured */
#endif
} settings;

#ifdef INVAR_LEDGER
int invar_bench_add_model_options(invar_option *list, invar_bench_model_options *o)
{
    const invar_option all[INVAR_BENCH_MODEL_OPTIONS] = {
        {"model", INVAR_OPTION_WORD, &o->model, "SHAPE",
         "measure a whole model with random weights", 0, 0},
        {"only", INVAR_OPTION_WORD, &o->only, "PART", "measure one part alone", 0, 0},
        {"dtype", INVAR_OPTION_WORD, &o->dtype, "FORMAT", "number format of the model", 0, 0},
        {"numerics", INVAR_OPTION_WORD, &o->numerics, "NAME",
         "arithmetic, by default sm90 on a GPU and ieee elsewhere", 0, 0},
        {"tokens", INVAR_OPTION_TEXT, &o->tokens, "BxL",
         "samples in a training step x tokens in each (8x2048; tiny: fewer)", 0, 0},
        {"micro-batch", INVAR_OPTION_INT, &o->micro_batch, "N",
         "number of samples in a micro-batch (all)", 1, 1 << 20},
        {"batch", INVAR_OPTION_INT, &o->batch, "N",
         "number of sequences decoded together (256; tiny: fewer)", 1, 1 << 16},
        {"context", INVAR_OPTION_INT, &o->context, "N",
         "number of tokens in each sequence before decoding is timed (512; tiny: fewer)", 1,
         1 << 20},
        {"layers", INVAR_OPTION_INT, &o->layers, "N",
         "use only the first N layers, when a step does not fit in memory", 1, 256},
        {"logical-tp", INVAR_OPTION_INT, &o->logical_tp, "N",
         "make sums of 1, 2, 4 or 8 pieces, as the recipe key does (1)", 1, 8},
        {"repetitions", INVAR_OPTION_INT, &o->repetitions, "N",
         "number of timed steps (5); the median is shown", 1, 64},
        {"profile", INVAR_OPTION_FLAG, &o->profile, NULL,
         "show the time of each op in a step and in a decoding pass", 0, 0},
        {"optimizer-cpu-offload", INVAR_OPTION_FLAG, &o->offload, NULL,
         "on a GPU: keep the moments of AdamW in host memory", 0, 0},
    };

    memcpy(list, all, sizeof all);
    return INVAR_BENCH_MODEL_OPTIONS;
}
#endif

static const invar_option *bench_options(settings *s)
{
    const invar_option all[] = {
        {"device", INVAR_OPTION_WORD, &s->device, "DEVICE", "where to run", 0, 0},
        {"op", INVAR_OPTION_TEXT, &s->op, "NAME",
         "only ops whose name contains NAME, such as linear or fwd", 0, 0},
        invar_option_threads(&s->threads, "measure with 1 thread and with N; a model with N"),
        {"json", INVAR_OPTION_FLAG, &s->json, NULL, "print every row as JSON", 0, 0},
    };
    static invar_option list[19];
    int n = sizeof all / sizeof *all;

    memcpy(list, all, sizeof all);
#ifdef INVAR_LEDGER
    n += invar_bench_add_model_options(list + n, &s->whole);
#endif
    list[n] = (invar_option){0};
    return list;
}

/* Returns the first of these options that is among the words, or NULL. */
static const char *first_given(const invar_option *options, int argc, char **argv)
{
    for (; options->name; options++)
        for (int i = 0; i < argc; i++) {
            size_t length = strlen(options->name);
            if (strncmp(argv[i], "--", 2) == 0 &&
                strncmp(argv[i] + 2, options->name, length) == 0 &&
                (argv[i][2 + length] == '\0' || argv[i][2 + length] == '='))
                return options->name;
        }
    return NULL;
}

/* Rejects options that would have no effect. */
static invar_status check_option_combinations(settings *s, int argc, char **argv)
{
    static const invar_option ops[] = {{.name = "op"}, {0}};
    static const invar_option gpu[] = {{.name = "optimizer-cpu-offload"}, {0}};
    bool whole = false;
    const char *stray;

#ifdef INVAR_LEDGER
    invar_option models[INVAR_BENCH_MODEL_OPTIONS + 1] = {0};
    (void)invar_bench_add_model_options(models, &s->whole);
    whole = s->whole.model.value >= 0;
    stray = whole ? NULL : first_given(models + 1, argc, argv);
    if (stray)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s is about a whole model: give --model", stray);
#endif
    stray = whole ? first_given(ops, argc, argv) : NULL;
    if (stray)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s is about single ops: leave out --model", stray);
    stray = s->device.value == INVAR_DEVICE_CPU ? first_given(gpu, argc, argv) : NULL;
    if (stray)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s is about a GPU: give --device cuda", stray);
    return INVAR_OK;
}

/* Returns the exit code; a missing GPU is an error. */
static int exit_code_of(invar_status status)
{
    return status == INVAR_OK ? INVAR_EXIT_OK : invar_report_error();
}

#ifdef INVAR_LEDGER
invar_bench_model_options invar_bench_default_model_options(void)
{
    return (invar_bench_model_options){.model = {&invar_bench_shape_choices, -1},
                                       .dtype = {&invar_format_choices, INVAR_FORMAT_BF16},
                                       .numerics = {&invar_numerics_choices, -1},
                                       .tokens = "",
                                       .only = {&invar_bench_part_choices, -1},
                                       .repetitions = 5,
                                       .threads = invar_default_threads()};
}
#endif

static settings default_settings(void)
{
    return (settings){
        .device = {&invar_device_kind_choices, INVAR_DEVICE_CPU},
        .op = "",
        .threads = invar_default_threads(),
#ifdef INVAR_LEDGER
        .whole = invar_bench_default_model_options(),
#endif
    };
}

static int cmd_bench(int argc, char **argv)
{
    settings s = default_settings();

    if (invar_options_parse(bench_options(&s), argc, argv) != INVAR_OK)
        return invar_report_error();
    if (invar_bench_check_selection(s.op) != INVAR_OK ||
        check_option_combinations(&s, argc, argv) != INVAR_OK)
        return invar_report_error();
#ifdef INVAR_LEDGER
    if (s.whole.model.value >= 0) {
        s.whole.device = (invar_device_kind)s.device.value;
        s.whole.threads = s.threads;
        s.whole.json = s.json;
        return exit_code_of(invar_bench_model(&s.whole));
    }
#endif
    return exit_code_of(
        invar_bench_run(&(invar_bench_options){.device = (invar_device_kind)s.device.value,
                                               .only = s.op,
                                               .threads = (int)s.threads,
                                               .json = s.json}));
}

static void bench_help(void)
{
    settings s = default_settings();

    invar_help_text(
        "Measures the speed of every op, and its share of what this machine can do: of the speed\n"
        "of a copy of as many bytes or, for products and attention, of the speed of a large\n"
        "product (on a CPU the faster one of f32 and bf16, on a GPU bf16).\n"
        "\n"
        "The column 'shape' depends on the op. A matrix product shows rows x outputs x inputs (x\n"
        "experts). Attention shows length x heads x key heads x head width, with the number of\n"
        "sequences in front if there is more than one. Expert ops show tokens x experts, or slots\n"
        "x width. Other ops show the shape of their tensor. Rates are multiply-adds (GMAC/s, on a\n"
        "GPU TFLOP/s), bytes read and written (GB/s) or tokens (Mtok/s).\n"
        "\n"
        "On a GPU, part of every result is also compared with the CPU.\n");
#ifdef INVAR_LEDGER
    invar_help_text(
        "With --model it measures one optimizer step and decoding of a whole model, what hashing\n"
        "and the ledger add to a step, and the memory that each part takes.\n");
#endif
    invar_help_text("Exit codes:\n"
                    "  0    done\n"
                    "  1    bits on the GPU differ from the CPU's\n"
                    "  125  no such device here\n");
    invar_options_help(bench_options(&s));
}

const invar_cli_command invar_cmd_bench = {.name = "bench",
                                           .summary =
                                               "measure the speed of ops or of a whole model",
                                           .run = cmd_bench,
                                           .help = bench_help,
                                           .multi_process = true};
