/*
 * export.h - exports a run as CSV, JSON lines or TensorBoard events.
 *
 * Equal ledgers give equal bytes. An export reads one snapshot, also while the run is being
 * written. Numbers are the shortest decimals that read back to the same bits, or are accompanied by
 * the bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_EXPORT_EXPORT_H
#define INVAR_LEDGER_VIEW_EXPORT_EXPORT_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "ledger/ledger.h"

/* The first bytes of an exported file, by which an output file is recognized. */
#define INVAR_EXPORT_CSV_MARK "step,segment,name,value,bits\r\n"
#define INVAR_EXPORT_JSONL_MARK "{\"kind\":\"run\","

/*
 * Writes CSV (RFC 4180) with the columns step,segment,name,value,bits: one row per metric of the
 * timeline, and one per evaluation result, whose name is eval/DATASET/METRIC. Ordered by step and
 * name.
 */
invar_status invar_export_csv(FILE *out, invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

/* Writes a field of a CSV row, with quotes if it needs them. */
void invar_export_csv_field(FILE *out, const char *text, size_t bytes);

/* Returns bytes as JSON, as hexadecimal digits; NULL for lack of memory. */
json_t *invar_export_hex(const void *data, size_t bytes);

/*
 * Writes the records of the run in all segments, one JSON object per line. "kind" is the kind of a
 * line. Kinds are in this order: run, identity, segment, fact, object, point, step, replica, stat,
 * sample, reply, reward_part, led_sample, kept_sample, work, op_time, evaluation, checkpoint,
 * event, seal, entry. Lines of a kind are in the order of the table's key. Members have the names
 * of the table's columns, except "segment" for seg and "KIND_kind" for kind. Blobs are hexadecimal
 * digits. Each double X is followed by X_bits, and "value" by "bits"; X is a string if JSON has no
 * such number: "nan", "inf" or "-inf".
 */
invar_status invar_export_jsonl(FILE *out, invar_ledger *ledger, int64_t run) INVAR_MUST_USE;

/*
 * Writes an event file in FOLDER/NAME/, where NAME is the name of the run. Its scalars are those of
 * the CSV and the gauges, at the wall time of their transaction. TensorBoard shows all event files
 * of a folder together, so a folder that has one is rejected. A failure leaves no file behind.
 */
invar_status invar_export_tensorboard(const char *folder, invar_ledger *ledger,
                                      int64_t run) INVAR_MUST_USE;

/* ---- events while a run is written ----------------------------------------------------------- */

/* Appends to the event file of a run while the run is written. */
typedef struct invar_tensorboard_writer invar_tensorboard_writer;

/*
 * Checks whether events can be written for a run called `name`, so that a program can fail early.
 * Creates nothing. Returns INVAR_E_IO if the file cannot be made, INVAR_E_INVALID if the run
 * `begins` and its folder has event files already.
 */
invar_status invar_tensorboard_writer_check(const char *folder, const char *name,
                                            bool begins) INVAR_MUST_USE;

/*
 * Opens the event file of a run for appending, with the steps up to `after` (-2 for none). Events
 * of these steps that an earlier process wrote stay; later or incomplete ones are cut off. At any
 * time the file has the bytes of an export of the steps that were added. The ledger is borrowed and
 * must outlive the writer. The caller closes *out with invar_tensorboard_writer_close.
 */
invar_status invar_tensorboard_writer_open(invar_tensorboard_writer **out, const char *folder,
                                           invar_ledger *ledger, int64_t run,
                                           int64_t after) INVAR_MUST_USE;

/*
 * Appends the steps up to `upto` that the file does not have. Call it after the evaluations of
 * these steps are recorded. Returns INVAR_E_IO also if the file was removed.
 */
invar_status invar_tensorboard_writer_add(invar_tensorboard_writer *events,
                                          int64_t upto) INVAR_MUST_USE;

/* Closes the file; `events` may be NULL. */
void invar_tensorboard_writer_close(invar_tensorboard_writer *events);

#endif
