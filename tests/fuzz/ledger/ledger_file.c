/*
 * ledger_file.c - fuzz target: a ledger's file, and its WAL, with any bytes changed.
 *
 * An input is a list of changes to a small valid ledger that is made when the program starts:
 *
 *   - byte 0: bit 0 keeps the WAL beside the file, bit 1 also opens it as a writer, and the other
 *     bits choose the query
 *   - then records of offset (3 bytes, little-endian, modulo the size), n (1 byte) and new bytes:
 *     if n < 0x80, n % 16 + 1 bytes are replaced; else the files end at the offset
 *
 * So most inputs get past the first page: printf '\0\0\240\0\3abcd' changes 4 bytes of page 11. A
 * file in which verify finds no problem must have the content of the valid ledger.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/ledger/ledger_use.h"
#include "tests/fuzz/scratch.h"

enum { WITH_WAL = 1, WRITE = 2 };

/* Both files while a writer has the ledger open: the database file, then the WAL. */
static struct {
    uint8_t *bytes;
    size_t file_size, wal_size;
    invar_ledger *ledger; /* ledger of the file without the WAL, to compare with */
    invar_digest content; /* content of that ledger */
} valid;

static char path[FUZZ_PATH_SIZE], wal_path[FUZZ_PATH_SIZE];

/*
 * Makes the valid ledger. One step is in the WAL only, because the files are copied before the
 * writer closes them.
 */
static void make_valid(void)
{
    char valid_path[FUZZ_PATH_SIZE], valid_wal_path[FUZZ_PATH_SIZE];
    uint8_t *file, *wal;
    invar_ledger *writer;

    fuzz_path(path, "ledger.db");
    fuzz_path(wal_path, "ledger.db-wal");
    fuzz_path(valid_path, "valid.db");
    fuzz_path(valid_wal_path, "valid.db-wal");
    INVAR_CHECK(invar_test_ledger_write(valid_path, &fuzz_spec) == INVAR_OK);
    INVAR_CHECK(invar_ledger_open(&writer, valid_path, &(invar_ledger_options){.write = true}) ==
                INVAR_OK);
    INVAR_CHECK(invar_test_ledger_resume(writer, &fuzz_spec, fuzz_spec.steps) == INVAR_OK);
    INVAR_CHECK(invar_test_ledger_step(writer, &fuzz_spec, 2, fuzz_spec.steps) == INVAR_OK);
    file = fuzz_read(&valid.file_size, valid_path);
    wal = fuzz_read(&valid.wal_size, valid_wal_path);
    invar_ledger_close(writer);
    INVAR_CHECK(valid.file_size > 0 && valid.wal_size > 0);
    valid.bytes = malloc(valid.file_size + valid.wal_size);
    INVAR_CHECK(valid.bytes);
    memcpy(valid.bytes, file, valid.file_size);
    memcpy(valid.bytes + valid.file_size, wal, valid.wal_size);
    free(file);
    free(wal);

    fuzz_write(valid_path, valid.bytes, valid.file_size);
    INVAR_CHECK(invar_ledger_open(&valid.ledger, valid_path, NULL) == INVAR_OK);
    INVAR_CHECK(invar_ledger_content_hash(&valid.content, valid.ledger, 1) == INVAR_OK);
}

static void write_changed_files(const uint8_t *data, size_t size, bool with_wal)
{
    size_t total = valid.file_size + (with_wal ? valid.wal_size : 0), end = total;
    uint8_t *bytes = malloc(total);

    INVAR_CHECK(bytes);
    memcpy(bytes, valid.bytes, total);
    while (size >= 5) {
        size_t offset = (data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16) % total;
        size_t count = data[3] % 16 + 1u;

        count = count < size - 4 ? count : size - 4;
        if (data[3] >= 0x80)
            end = offset;
        else
            memcpy(bytes + offset, data + 4, count < total - offset ? count : total - offset);
        data += 4 + count;
        size -= 4 + count;
    }
    fuzz_write(path, bytes, end < valid.file_size ? end : valid.file_size);
    unlink(wal_path);
    if (end > valid.file_size)
        fuzz_write(wal_path, bytes + valid.file_size, end - valid.file_size);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int flags = size > 0 ? data[0] : 0;
    invar_digest content;
    invar_ledger *ledger;
    invar_status status;

    if (!valid.bytes)
        make_valid();
    write_changed_files(data + (size > 0), size - (size > 0), flags & WITH_WAL);
    status = invar_ledger_open(&ledger, path, NULL);
    if (status != INVAR_OK) {
        fuzz_check_failure(status);
    } else {
        bool clean = fuzz_use(ledger, valid.ledger, flags >> 2);
        // a damaged WAL ends earlier, which leaves a valid ledger of fewer steps
        if (clean && !(flags & WITH_WAL)) {
            INVAR_CHECK(invar_ledger_content_hash(&content, ledger, 1) == INVAR_OK);
            INVAR_CHECK(invar_digest_equal(&content, &valid.content));
        }
        invar_ledger_close(ledger);
    }
    if (flags & WRITE)
        fuzz_write_on(path);
    return 0;
}
