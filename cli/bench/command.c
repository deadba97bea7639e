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
#include "cli/bench/model.h"

#include "base/invar_banned.h"

static const char *op = "";
static bool json;
static invar_option_choice device = {&invar_device_kind_choices, INVAR_DEVICE_CPU};
static invar_bench_model_options model = INVAR_BENCH_MODEL_DEFAULTS;

enum { MODEL = 4 }; /* the row of --model, before those about a model */

static const invar_option options[] = {
    {"device", INVAR_OPTION_WORD, &device, "DEVICE", "where to run", 0, 0},
    {"op", INVAR_OPTION_TEXT, &op, "NAME",
     "only ops whose name contains NAME, such as linear or fwd", 0, 0},
    INVAR_OPTION_THREADS(&model.threads, "measure with 1 thread and with N; a model with N"),
    {"json", INVAR_OPTION_FLAG, &json, NULL, "print every row as JSON", 0, 0},
    INVAR_BENCH_MODEL_OPTIONS(model),
    {0}};

/* Returns true if the option is among the words. */
static bool is_given(const char *name, int argc, char **argv)
{
    size_t length = strlen(name);

    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0 && strncmp(argv[i] + 2, name, length) == 0 &&
            (argv[i][2 + length] == '\0' || argv[i][2 + length] == '='))
            return true;
    return false;
}

/* Rejects options that would have no effect. */
static invar_status check_option_combinations(int argc, char **argv)
{
    bool whole = model.model.value >= 0;

    for (const invar_option *o = &options[MODEL + 1]; o->name && !whole; o++)
        if (is_given(o->name, argc, argv))
            return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s is about a whole model: give --model",
                              o->name);
    if (whole && is_given("op", argc, argv))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--op is about single ops: leave out --model");
    if (model.offload && device.value == INVAR_DEVICE_CPU)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--optimizer-cpu-offload is about a GPU: give --device cuda");
    return INVAR_OK;
}

static int cmd_bench(int argc, char **argv)
{
    model.threads = invar_default_threads();
    if (invar_options_parse(options, argc, argv) != INVAR_OK ||
        invar_bench_check_selection(op) != INVAR_OK ||
        check_option_combinations(argc, argv) != INVAR_OK)
        return invar_report_error();
    model.device = (invar_device_kind)device.value;
    model.json = json;
    if (model.model.value >= 0)
        return invar_exit(invar_bench_model(&model));
    return invar_exit(invar_bench_run(&(invar_bench_options){
        .device = model.device, .only = op, .threads = (int)model.threads, .json = json}));
}

const invar_cli_command invar_cmd_bench = {
    .name = "bench",
    .summary = "measure the speed of ops or of a whole model",
    .run = cmd_bench,
    .about =
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
        "With --model it measures one optimizer step and decoding of a whole model, what hashing\n"
        "and the ledger add to a step, and the memory that each part takes.\n"
        "\n"
        "Exit codes:\n"
        "  0    done\n"
        "  125  no such device here\n",
    .options = options,
    .result = INVAR_BENCH_OPS_RESULT "; " INVAR_BENCH_MODEL_RESULT,
    .multi_process = true};
