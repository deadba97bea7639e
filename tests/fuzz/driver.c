/*
 * driver.c - runs a fuzz target without libFuzzer, with the same inputs on every machine.
 *
 *     PROGRAM CORPUS [MUTATIONS [SEED]]
 *
 * It runs every file of the folder CORPUS, then mutations of them, in a child process. If the child
 * dies, by a crash, a sanitizer or a timeout of the test, the parent knows the number of the input,
 * writes the input to ./crash-NUMBER and fails. To run one input again, put it alone into a folder
 * and pass that as the corpus.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define DEFAULT_MUTATIONS 100000
#define MAX_BYTES 8192 /* largest size of an input; longer ones only make runs slow */
#define MAX_FILES 1024

typedef struct input {
    uint8_t *data;
    size_t size;
} input;

typedef struct corpus {
    input files[MAX_FILES];
    uint32_t count;
} corpus;

static void fail_exit(const char *what, const char *name)
{
    fprintf(stderr, "fuzz: %s: %s\n", what, name);
    exit(2);
}

/* ---- corpus ---------------------------------------------------------------------------------- */

static input read_input(const char *folder, const char *name)
{
    char path[4096];
    input in = {malloc(MAX_BYTES), 0};
    FILE *stream;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    stream = fopen(path, "rb");
    if (!stream || !in.data)
        fail_exit("cannot be read", path);
    in.size = fread(in.data, 1, MAX_BYTES, stream);
    fclose(stream);
    return in;
}

/* Reads the files in the order of their names, so that mutation N is the same everywhere. */
static void read_corpus(corpus *c, const char *folder)
{
    struct dirent **names;
    int count = scandir(folder, &names, NULL, alphasort);

    if (count < 0)
        fail_exit("no such folder", folder);
    for (int i = 0; i < count; i++) {
        if (names[i]->d_name[0] != '.' && c->count < MAX_FILES)
            c->files[c->count++] = read_input(folder, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    if (c->count == 0)
        fail_exit("the corpus is empty", folder);
}

/* ---- mutations ------------------------------------------------------------------------------- */

static uint64_t random_state;

/* splitmix64. Any seed is good, including the small ones that count mutations. */
static uint64_t random_next(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static size_t random_below(size_t limit)
{
    return limit ? (size_t)(random_next() % limit) : 0;
}

/* Replaces `removed` bytes at offset `at` by `added` bytes of `source`, cut off at MAX_BYTES. */
static void splice(input *in, size_t at, size_t removed, const uint8_t *source, size_t added)
{
    uint8_t copy[MAX_BYTES];

    if (added > MAX_BYTES - (in->size - removed))
        added = MAX_BYTES - (in->size - removed);
    memcpy(copy, source, added); // the source may be this input
    memmove(in->data + at + added, in->data + at + removed, in->size - at - removed);
    memcpy(in->data + at, copy, added);
    in->size += added - removed;
}

static void mutate_once(input *in, const corpus *c)
{
    // structure, numbers at their limits, and broken text of many formats
    static const char *const tokens[] = {
        "\n",   "\r\n", "=",    "[",    "]",          "#",
        ";",    " ",    "\t",   "-",    "0",          "1e",
        ".",    "nan",  "inf",  "true", "\xC3",       "\xEF\xBB\xBF",
        "\x80", "e999", "{",    "}",    "\"",         ",",
        ":",    "\\u",  "null", "0x",   "4294967296", "9223372036854775808"};
    static const size_t n_tokens = sizeof tokens / sizeof tokens[0];
    size_t at = random_below(in->size + 1), bytes_left = in->size - at;
    const input *other = &c->files[random_below(c->count)];
    size_t from = random_below(other->size + 1);
    uint8_t byte = (uint8_t)random_next();
    const char *token = tokens[random_below(n_tokens)];

    switch (random_below(7)) {
    case 0: // flip a bit
        if (bytes_left > 0)
            in->data[at] ^= (uint8_t)(1u << random_below(8));
        break;
    case 1: // set a byte
        if (bytes_left > 0)
            in->data[at] = byte;
        break;
    case 2: // insert a byte, which may be NUL
        splice(in, at, 0, &byte, 1);
        break;
    case 3: // remove some bytes
        splice(in, at, random_below((bytes_left < 32 ? bytes_left : 32) + 1), &byte, 0);
        break;
    case 4: // insert a token
        splice(in, at, 0, (const uint8_t *)token, strlen(token));
        break;
    case 5: // repeat some bytes
        splice(in, at, 0, in->data + at, random_below((bytes_left < 64 ? bytes_left : 64) + 1));
        break;
    default: // replace some bytes by some of another file
        splice(in, at, random_below(bytes_left + 1), other->data + from,
               random_below(other->size - from + 1));
    }
}

/*
 * Makes input `number`: a file of the corpus, or a mutation of one. The result depends on corpus,
 * seed and number only.
 */
static void make_input(input *out, const corpus *c, uint64_t seed, uint64_t number)
{
    const input *file = &c->files[number % c->count];

    memcpy(out->data, file->data, file->size);
    out->size = file->size;
    if (number < c->count)
        return;
    random_state = seed << 40 ^ number;
    for (size_t bytes_left = 1 + random_below(6); bytes_left > 0; bytes_left--)
        mutate_once(out, c);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/*
 * Runs the target on a copy in a block of exactly its size, so that a sanitizer sees a read past
 * the end.
 */
static void run_input(const input *in)
{
    uint8_t *copy = malloc(in->size ? in->size : 1);

    if (!copy)
        fail_exit("no memory", "input");
    memcpy(copy, in->data, in->size);
    LLVMFuzzerTestOneInput(copy, in->size);
    free(copy);
}

/* Returns a number that parent and child share and that outlives the child. */
static volatile uint64_t *shared_number(void)
{
    FILE *file = tmpfile();
    void *page;

    if (!file || ftruncate(fileno(file), sizeof(uint64_t)) != 0)
        fail_exit("no temporary file", "counter");
    page = mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (page == MAP_FAILED)
        fail_exit("no shared page", "counter");
    fclose(file);
    return page;
}

static void save_input(const input *in, uint64_t number)
{
    char name[64];
    FILE *stream;

    snprintf(name, sizeof name, "crash-%llu", (unsigned long long)number);
    stream = fopen(name, "wb");
    if (!stream || fwrite(in->data, 1, in->size, stream) != in->size || fclose(stream) != 0)
        fail_exit("cannot be written", name);
    fprintf(stderr, "fuzz: input %s made the target fail (%zu bytes)\n", name, in->size);
}

int main(int argc, char **argv)
{
    uint64_t mutations = argc > 2 ? strtoull(argv[2], NULL, 10) : DEFAULT_MUTATIONS;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    static uint8_t buffer[MAX_BYTES];
    static corpus files;
    input in = {buffer, 0};
    volatile uint64_t *number;
    uint64_t total;
    int result = 0;
    pid_t child;

    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: %s CORPUS [MUTATIONS [SEED]]\n", argv[0]);
        return 2;
    }
    read_corpus(&files, argv[1]);
    number = shared_number();
    total = files.count + mutations;
    child = fork();
    if (child < 0)
        fail_exit("cannot start a process", argv[0]);
    if (child == 0) {
        for (; *number < total; ++*number) {
            make_input(&in, &files, seed, *number);
            run_input(&in);
        }
    } else if (waitpid(child, &result, 0) != child || result != 0) {
        if (*number == total)
            fail_exit("all inputs passed, but the process failed at its end (a leak?)", argv[0]);
        make_input(&in, &files, seed, *number);
        save_input(&in, *number);
    } else {
        printf("%u files and %llu mutations passed\n", (unsigned)files.count,
               (unsigned long long)mutations);
    }
    for (uint32_t i = 0; i < files.count; i++)
        free(files.files[i].data);
    return result != 0;
}
