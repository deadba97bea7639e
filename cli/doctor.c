/*
 * doctor.c - invar doctor: checks whether this machine computes numerics sm90, and how fast.
 *
 * Inspects the GPU: driver, memory, probes of tensor cores and special function units, memory
 * bandwidth and the rate of a large matrix product. The exit code is 1 if a probe differs from
 * numerics sm90, and 2 if there is a GPU that fails. With --ranks, all machines of a job are
 * compared instead (cli/run/ranks.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/console/term.h"
#include "base/json/result.h"
#include "base/process/argv0.h"
#include "base/process/process.h"
#include "cli/command.h"
#include "cli/doctor.h"
#include "cli/open_ranks.h"
#include "cli/recipe_flags.h"
#include "engine/config/config.h"
#include "kernels-deterministic/ops.h"

#include "base/invar_banned.h"

static struct {
    bool json;
    int64_t ranks;   /* number of threads as ranks; 0 to inspect only this machine */
    int64_t timeout; /* seconds that a rank waits for another; 0 for the default */
} asked;

/* ---- rate of a matrix product ---------------------------------------------------------------- */

enum { EDGE = 8192, PRODUCTS = 10 };

/*
 * Fills the matrices with random signs and fractions: zeros save power, which would raise the rate.
 */
static invar_status time_product(double *out, const invar_device *dev, char *memory)
{
    size_t bytes = (size_t)EDGE * EDGE * sizeof(uint16_t);
    invar_linear_fwd_args args = {
        .x = invar_tensor_2d(memory, INVAR_DTYPE_BF16, EDGE, EDGE),
        .w = invar_tensor_2d(memory + bytes, INVAR_DTYPE_BF16, EDGE, EDGE),
        .y = invar_tensor_2d(memory + 2 * bytes, INVAR_DTYPE_BF16, EDGE, EDGE),
        .k_shards = 1};
    uint16_t row[EDGE];
    int64_t begin;

    for (int i = 0; i < 2 * EDGE; i++) {
        for (int j = 0; j < EDGE; j++)
            row[j] =
                (uint16_t)(0x3F00u | ((uint32_t)(i * 40503 + j) * 2654435761u >> 16 & 0x80FFu));
        INVAR_TRY(invar_device_upload(dev, memory + (size_t)i * sizeof row, row, sizeof row));
    }
    INVAR_TRY(invar_linear_fwd(dev, &args));
    INVAR_TRY(invar_device_synchronize(dev));
    begin = invar_process_clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < PRODUCTS; i++)
        INVAR_TRY(invar_linear_fwd(dev, &args));
    INVAR_TRY(invar_device_synchronize(dev));
    *out = 2e9 * EDGE * EDGE * EDGE * PRODUCTS /
           (double)(invar_process_clock_ns(CLOCK_MONOTONIC) - begin);
    return INVAR_OK;
}

static invar_status measure_product(double *out, const invar_device *dev)
{
    size_t bytes = (size_t)EDGE * EDGE * sizeof(uint16_t) * 3;
    invar_status status;
    void *memory;

    INVAR_TRY(invar_device_alloc(dev, &memory, bytes, "matrices of the doctor"));
    status = time_product(out, dev, memory);
    invar_device_free(dev, memory);
    return status;
}

/* ---- inspection ------------------------------------------------------------------------------ */

bool invar_doctor_agrees(const invar_doctor_findings *f)
{
    return f->gpu.step_differences == 0 && f->gpu.sfu_differences == 0;
}

static invar_status examine_gpu(invar_doctor_findings *f, invar_device *dev)
{
    if (!dev->backend->measure)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "the backend %s has nothing to tell",
                          dev->backend->name);
    INVAR_TRY(dev->backend->measure(dev, &f->gpu));
    f->examined = true;
    if (!invar_doctor_agrees(f))
        return INVAR_OK;
    dev->numerics = INVAR_NUMERICS_SM90;
    return measure_product(&f->product_flops, dev);
}

void invar_doctor_inspect(invar_doctor_findings *f, int ordinal)
{
    // numerics ieee, because opening with sm90 fails if a probe differs, and that is to be reported
    invar_device dev = {.numerics = INVAR_NUMERICS_IEEE, .ordinal = ordinal};
    invar_status status = invar_backend_find(&dev.backend, INVAR_DEVICE_CUDA);

    *f = (invar_doctor_findings){.cores = 0};
    f->cores = (long)invar_process_cores(1, 1);
    f->built = status == INVAR_OK;
    if (status == INVAR_OK)
        status = invar_device_open(&dev);
    f->present = status == INVAR_OK;
    if (status == INVAR_OK)
        status = examine_gpu(f, &dev);
    if (status != INVAR_OK)
        snprintf(f->trouble, sizeof f->trouble, "%s", invar_error_last()->message);
    invar_device_close(&dev);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Prints how many results of a unit differ from numerics sm90. */
static void print_verdict(const char *name, int64_t results, const char *whose, int64_t differ)
{
    bool color = invar_term_has_color(stdout);

    printf("%-8s %s%s%s: %" PRId64 " results of the %s, %" PRId64 " differ from numerics sm90\n",
           name, invar_term_escape(color, differ ? INVAR_TERM_STYLE_RED : INVAR_TERM_STYLE_GREEN),
           differ ? "DIFFERS" : "agrees", invar_term_escape(color, INVAR_TERM_STYLE_PLAIN), results,
           whose, differ);
}

static void print_text(const invar_doctor_findings *f)
{
    printf("invar    %s, %s\n", INVAR_VERSION, f->built ? "with CUDA" : "without CUDA");
    printf("cpu      %ld cores\n", f->cores);
    if (!f->examined) {
        printf("gpu      %s: %s\n\nnext: %s selfcheck\n", f->present ? "fails" : "none", f->trouble,
               invar_argv0());
        return;
    }
    printf("gpu      %s, %d multiprocessors, %zu of %zu MiB free\n", f->gpu.name,
           f->gpu.multiprocessors, f->gpu.memory_free >> 20, f->gpu.memory >> 20);
    printf("driver   CUDA %s; this build: CUDA %s\n", f->gpu.driver, f->gpu.runtime);
    print_verdict("step", f->gpu.step_outputs, "tensor cores", f->gpu.step_differences);
    print_verdict("unit", f->gpu.sfu_results, "special function units", f->gpu.sfu_differences);
    printf("memory   %.2f TB/s, read and written\n", f->gpu.copy_bytes_per_second * 1e-12);
    if (f->product_flops > 0.0)
        printf("product  %.0f TFLOP/s, bf16, %d x %d x %d\n", f->product_flops * 1e-12, EDGE, EDGE,
               EDGE);
    if (f->trouble[0])
        printf("trouble  %s\n", f->trouble);
    if (!invar_doctor_agrees(f))
        puts("         this GPU must not run numerics sm90: train with device = cpu");
    printf("\nnext: %s %s\n", invar_argv0(),
           invar_doctor_agrees(f) ? "bench --device cuda" : "selfcheck --device cpu");
}

#define GPU                                                                                        \
    "{name text, multiprocessors int, memory int, free int, driver text, runtime text,"            \
    " step_outputs int, step_differences int, unit_results int, unit_differences int,"             \
    " copy_bytes_per_second real, product_flops real}"
#define RESULT "{version text, cuda bool, cores int, gpu~ " GPU ", trouble~ text} (this machine)"

static invar_status print_json(const invar_doctor_findings *f)
{
    const invar_device_info *g = &f->gpu;

    return invar_json_write(
        stdout, INVAR_RESULT(RESULT, INVAR_VERSION, f->built, f->cores,
                             f->examined ? INVAR_RESULT(GPU, g->name, g->multiprocessors, g->memory,
                                                        g->memory_free, g->driver, g->runtime,
                                                        g->step_outputs, g->step_differences,
                                                        g->sfu_results, g->sfu_differences,
                                                        g->copy_bytes_per_second, f->product_flops)
                                         : json_null(),
                             f->trouble[0] ? f->trouble : NULL));
}

/* ---- the command ----------------------------------------------------------------------------- */

int invar_doctor_code(const invar_doctor_findings *f)
{
    if (f->present && f->trouble[0])
        return INVAR_EXIT_TROUBLE;
    return invar_doctor_agrees(f) ? INVAR_EXIT_OK : INVAR_EXIT_DIFFERENT;
}

#define OPTIONS                                                                                    \
    {"json", INVAR_OPTION_FLAG, &asked.json, NULL, "print the findings as JSON", 0, 0},            \
        {"ranks",                                                                                  \
         INVAR_OPTION_OPTIONAL_INT,                                                                \
         &asked.ranks,                                                                             \
         "[N]",                                                                                    \
         "compare the ranks that mpirun or srun has started, or N threads, and the recipe if one " \
         "is "                                                                                     \
         "given",                                                                                  \
         1,                                                                                        \
         1024},                                                                                    \
    {                                                                                              \
        "timeout", INVAR_OPTION_INT, &asked.timeout, "SECONDS",                                    \
            "how long a rank waits for another (60, or the recipe's distributed-timeout-minutes)", \
            1, 86400                                                                               \
    }

static const invar_option options[] = {OPTIONS, {0}};
static const invar_option options_of_ranks[] = {OPTIONS, INVAR_RECIPE_FLAGS_END};

static bool names_ranks(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "--ranks", 7) == 0 && (!argv[i][7] || argv[i][7] == '='))
            return true;
    return false;
}

/* Recipe keys on the command line replace a recipe file. */
static int cmd_doctor_ranks(int argc, char **argv)
{
    invar_doctor_ranks_options request = {.path = NULL};
    invar_config config = {.recipe = NULL};
    int code, words = argc;
    invar_status status =
        invar_recipe_flags_recipe(&config, &request.path, options_of_ranks, &argc, argv);

    if (status == INVAR_OK && argc < words) {
        request.config = &config;
        status = invar_config_check(&config);
    }
    if (status == INVAR_OK) {
        request.ranks = asked.ranks;
        request.seconds = (double)asked.timeout;
        request.json = asked.json;
        code = invar_doctor_ranks(&request);
    } else {
        invar_open_ranks_queue();
        code = invar_report_error();
    }
    invar_recipe_free(config.recipe);
    return code;
}

static int cmd_doctor(int argc, char **argv)
{
    invar_doctor_findings f;

    if (names_ranks(argc, argv))
        return cmd_doctor_ranks(argc, argv);
    if (invar_options_parse(options, argc, argv) != INVAR_OK)
        return invar_report_error();
    if (asked.timeout) {
        (void)INVAR_FAIL(INVAR_E_INVALID, 0, "--timeout is about ranks: give --ranks");
        return invar_report_error();
    }
    invar_doctor_inspect(&f, 0);
    if (!asked.json)
        print_text(&f);
    else if (print_json(&f) != INVAR_OK)
        return invar_report_error();
    return invar_doctor_code(&f);
}

const invar_cli_command invar_cmd_doctor = {
    .name = "doctor",
    .summary = "check the GPU: driver, memory, tensor cores, speed",
    .run = cmd_doctor,
    .about =
        "Checks the GPU: driver, memory, whether its tensor cores and special function units\n"
        "compute numerics = sm90 bit for bit, memory bandwidth, and the speed of one large matrix "
        "product.\n"
        "\n"
        "With --ranks it checks the ranks of a job before a long run: host, threads, GPU, driver "
        "and\n"
        "program of each, the bytes that they send each other, latency and bandwidth. With a "
        "recipe "
        "it\n"
        "also reads data and weights on every rank, and compares them as a run does.\n"
        "\n"
        "Exit codes:\n"
        "  0    no problem found, or no GPU\n"
        "  1    the tensor cores or special function units compute other bits; ranks differ, or\n"
        "       bytes between them are wrong\n"
        "  2    the GPU fails, or a rank does not answer\n",
    .options = options,
    .result = RESULT "; " INVAR_RANKS_RESULT,
    .arguments = "[--ranks [N] [RECIPE] [--key value ...]]",
    .multi_process = true};
