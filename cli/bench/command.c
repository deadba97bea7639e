/*
 * command.c - the command invar bench: its options, and which benchmark they select.
 *
 * Without --model single ops are measured, on the CPU (bench.c) or a GPU (gpu.c); with --model a
 * whole model (model.c). An option that would have no effect is rejected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/bench/gpu.h"
#ifdef INVAR_LEDGER
#include "cli/bench/model.h"
#endif

#include "base/invar_banned.h"

typedef struct settings {
    invar_option_choice device;
    const char *op;
    int64_t threads;
    invar_gpu_compare_options race;
#ifdef INVAR_LEDGER
    invar_bench_model_options whole; /* without a model single ops are measured */
#endif
} settings;

#ifdef INVAR_LEDGER
enum { MODEL_OPTIONS = 13 };

/* Adds the options of --model. The first one is --model; the others require it. */
static int add_model_options(invar_option *list, invar_bench_model_options *o)
{
    const struct {
        const char *name;
        invar_option_choice *value;
        const char *metavar, *help;
    } words[] = {
        {"model", &o->model, "SHAPE", "measure a whole model with random weights"},
        {"only", &o->only, "PART", "measure one part alone"},
        {"dtype", &o->dtype, "FORMAT", "number format of the model"},
        {"numerics", &o->numerics, "NAME",
         "arithmetic, by default sm90 on a GPU and ieee elsewhere"},
    };
    const struct {
        const char *name;
        int64_t *value, low, high;
        const char *help;
    } numbers[] = {
        {"micro-batch", &o->micro_batch, 1, 1 << 20, "number of samples in a micro-batch (all)"},
        {"batch", &o->batch, 1, 1 << 16, "number of sequences decoded together (256; tiny: fewer)"},
        {"context", &o->context, 1, 1 << 20,
         "number of tokens in each sequence before decoding is timed (512; tiny: fewer)"},
        {"layers", &o->layers, 1, 256,
         "use only the first N layers, when a step does not fit in memory"},
        {"logical-tp", &o->logical_tp, 1, 8,
         "make sums of 1, 2, 4 or 8 pieces, as the recipe key does (1)"},
        {"repetitions", &o->repetitions, 1, 64, "number of timed steps (5); the median is shown"},
    };
    int n = 0;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        list[n++] = (invar_option){.name = words[i].name,
                                   .type = INVAR_OPTION_WORD,
                                   .value = words[i].value,
                                   .metavar = words[i].metavar,
                                   .help = words[i].help};
    list[n++] =
        (invar_option){.name = "tokens",
                       .type = INVAR_OPTION_TEXT,
                       .value = &o->tokens,
                       .metavar = "BxL",
                       .help = "samples in a training step x tokens in each (8x2048; tiny: fewer)"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        list[n++] = (invar_option){.name = numbers[i].name,
                                   .type = INVAR_OPTION_INT,
                                   .value = numbers[i].value,
                                   .metavar = "N",
                                   .help = numbers[i].help,
                                   .low = numbers[i].low,
                                   .high = numbers[i].high};
    list[n++] = (invar_option){.name = "profile",
                               .value = &o->profile,
                               .help = "show the time of each op in a step and in a decoding pass"};
    list[n++] = (invar_option){.name = "optimizer-cpu-offload",
                               .value = &o->offload,
                               .help = "on a GPU: keep the moments of AdamW in host memory"};
    return n;
}
#endif

static const invar_option *bench_options(settings *s)
{
    static invar_option list[21];
    int n = 6;

    list[0] = (invar_option){.name = "device",
                             .type = INVAR_OPTION_WORD,
                             .value = &s->device,
                             .metavar = "DEVICE",
                             .help = "where to run"};
    list[1] = (invar_option){.name = "op",
                             .type = INVAR_OPTION_TEXT,
                             .value = &s->op,
                             .metavar = "NAME",
                             .help = "only ops whose name contains NAME, such as linear or fwd"};
    list[2] = invar_option_threads(&s->threads, "measure with 1 thread and with N; a model with N");
    list[3] =
        (invar_option){.name = "json", .value = &s->race.json, .help = "print every row as JSON"};
    list[4] = (invar_option){.name = "peer",
                             .type = INVAR_OPTION_TEXT,
                             .value = &s->race.peer,
                             .metavar = "FILE.so",
                             .help = "on a GPU or with --model: also measure the ops of this "
                                     "shared object (tests/bench/peer.cpp)"};
    list[5] = (invar_option){
        .name = "burst",
        .type = INVAR_OPTION_INT,
        .value = &s->race.burst,
        .metavar = "MS",
        .help = "on a GPU: how long each op and its peers run in turn, in milliseconds (10)",
        .low = 1,
        .high = 1000};
#ifdef INVAR_LEDGER
    n += add_model_options(list + n, &s->whole);
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
    static const invar_option ops[] = {{.name = "op"}, {.name = "burst"}, {0}};
    static const invar_option gpu[] = {{.name = "burst"}, {.name = "optimizer-cpu-offload"}, {0}};
    bool whole = false;
    const char *stray;

#ifdef INVAR_LEDGER
    invar_option models[MODEL_OPTIONS + 1] = {0};
    (void)add_model_options(models, &s->whole);
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

static int run_on_gpu(const settings *s)
{
    invar_pool *pool = NULL;
    invar_status status = invar_pool_new(&pool, (int)s->threads);

    if (status == INVAR_OK)
        status = invar_bench_gpu(s->op, &s->race, pool);
    invar_pool_free(pool);
    return exit_code_of(status);
}

static int run_on_cpu(const settings *s)
{
    return exit_code_of(invar_bench_cpu(s->op, (int)s->threads, s->race.json));
}

static settings default_settings(void)
{
    return (settings){
        .device = {&invar_device_kind_choices, INVAR_DEVICE_CPU},
        .op = "",
        .threads = invar_default_threads(),
        .race = {.peer = "", .burst = 10},
#ifdef INVAR_LEDGER
        .whole = {.model = {&invar_bench_shape_choices, -1},
                  .dtype = {&invar_format_choices, INVAR_FORMAT_BF16},
                  .numerics = {&invar_numerics_choices, -1},
                  .tokens = "",
                  .only = {&invar_bench_part_choices, -1},
                  .repetitions = 5},
#endif
    };
}

static int cmd_bench(int argc, char **argv)
{
    settings s = default_settings();
    bool cuda;

    if (invar_options_parse(bench_options(&s), argc, argv) != INVAR_OK)
        return invar_report_error();
    if (invar_bench_check_selection(s.op) != INVAR_OK ||
        check_option_combinations(&s, argc, argv) != INVAR_OK)
        return invar_report_error();
    cuda = s.device.value == INVAR_DEVICE_CUDA;
#ifdef INVAR_LEDGER
    if (s.whole.model.value >= 0) {
        s.whole.device = (invar_device_kind)s.device.value;
        s.whole.threads = s.threads;
        s.whole.json = s.race.json;
        s.whole.peer = s.race.peer;
        return exit_code_of(invar_bench_model(&s.whole));
    }
#endif
    if (!cuda && s.race.peer[0]) {
        fprintf(stderr, "invar: bench: --peer: ops of the CPU have their own peers; give --device "
                        "cuda or --model\n");
        return INVAR_EXIT_USAGE;
    }
    return cuda ? run_on_gpu(&s) : run_on_cpu(&s);
}

static void bench_help(void)
{
    settings s = default_settings();

    invar_help_text(
        "Measures the speed of every op and, in the same run, of a peer to compare it with:\n"
        "OpenBLAS, memcpy or plain XXH3 on a CPU; a copy of as many bytes on a GPU, or with\n"
        "--peer the kernels of a vendor (tests/bench/gpu.py builds such a file from cuBLAS and\n"
        "cuDNN).\n"
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
