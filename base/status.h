/*
 * status.h - status codes and the error record of each thread.
 *
 * Every function that can fail returns an invar_status. A failure is created only by INVAR_FAIL,
 * which sets the error record and yields the code, so every code has a message. The record is in
 * thread-local storage of fixed size, so failing never allocates memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_STATUS_H
#define INVAR_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Codes are chosen by the reaction that is open to the caller, not by the component that failed. */
typedef enum invar_status {
    INVAR_OK = 0,
    INVAR_E_INVALID = -1,     /* an argument or input is wrong: correct it */
    INVAR_E_NOMEM = -2,       /* memory is exhausted */
    INVAR_E_IO = -3,          /* the operating system failed; native holds errno */
    INVAR_E_CORRUPT = -4,     /* a file is damaged or hostile */
    INVAR_E_STATE = -5,       /* the object is not in a state that allows the call */
    INVAR_E_UNSUPPORTED = -6, /* valid, but not supported by this build, backend or machine */
    INVAR_E_NOTFOUND = -7,    /* the object does not exist */
    INVAR_E_BUSY = -8,        /* another process or thread holds the object */
    INVAR_E_MISMATCH = -9,    /* bits differ: a result, not a malfunction */
    INVAR_E_CUDA = -10,       /* native holds cudaError_t */
    INVAR_E_NCCL = -11,       /* native holds ncclResult_t */
    INVAR_E_SQL = -12,        /* native holds the extended SQLite code */
    INVAR_E_GIT = -13,        /* native holds the libgit2 code */
    INVAR_E_MPI = -14,        /* native holds the MPI code */
    INVAR_E_NODEVICE = -15    /* this machine has no such device: choose another */
} invar_status;

#define INVAR_ERROR_MESSAGE_SIZE 4096

/* The record of a failure. */
typedef struct invar_error {
    invar_status status;
    int native;       /* code of the system or library that failed; 0 without one */
    const char *file; /* source file and line that created the failure */
    int line;
    char message[INVAR_ERROR_MESSAGE_SIZE]; /* one line, no trailing newline */
} invar_error;

#if defined(__GNUC__)
#define INVAR_MUST_USE __attribute__((warn_unused_result))
#define INVAR_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define INVAR_EXPORT                                                                               \
    __attribute__((visibility("default"))) /* modules call it (base/process/module.h) */
#else
#define INVAR_MUST_USE
#define INVAR_PRINTF(fmt, first)
#define INVAR_EXPORT
#endif

/*
 * Returns the record of this thread's last failure; its status is INVAR_OK without a failure. Never
 * NULL. Valid until the next failure or invar_error_clear of the thread.
 */
const invar_error *invar_error_last(void);

/* Clears the record after a failure was handled. */
INVAR_EXPORT void invar_error_clear(void);

/*
 * Move a record: take copies the record of this thread to *out and clears it, put makes *error the
 * record of this thread. For example, to pass a failure to the thread that joins this one.
 */
void invar_error_take(invar_error *out);
void invar_error_put(const invar_error *error);

/* Appends "; ADVICE" to the record if `status` is `only`. Returns `status`. */
invar_status invar_error_advise(invar_status status, invar_status only,
                                const char *advice) INVAR_MUST_USE;

/*
 * Puts "KEY: ", the recipe key or flag to correct, before the message of a failure. Returns
 * `status`; does nothing if it is INVAR_OK.
 */
invar_status invar_error_of_key(invar_status status, const char *key) INVAR_MUST_USE;

/* Returns the name of a code, such as "INVALID"; "UNKNOWN" for a number that is not a code. */
const char *invar_status_name(invar_status status);

/* Sets the record of this thread. Call INVAR_FAIL instead. */
INVAR_EXPORT void invar_error_set(invar_status status, int native, const char *file, int line,
                                  const char *fmt, ...) INVAR_PRINTF(5, 6);

/*
 * Sets the error record with a printf format and yields `status`. A macro, so that the compiler
 * knows that a constant failure is not INVAR_OK.
 */
#define INVAR_FAIL(status, native, ...)                                                            \
    (invar_error_set((status), (native), __FILE__, __LINE__, __VA_ARGS__), (status))

/* Returns the status of `expr` from the calling function if it is not INVAR_OK. */
#define INVAR_TRY(expr)                                                                            \
    do {                                                                                           \
        invar_status invar_try_status_ = (expr);                                                   \
        if (invar_try_status_ != INVAR_OK)                                                         \
            return invar_try_status_;                                                              \
    } while (0)

/* Aborts with a line on stderr if an internal invariant is broken. Active in every build. */
#define INVAR_CHECK(cond)                                                                          \
    do {                                                                                           \
        if (!(cond))                                                                               \
            invar_check_failed(#cond, __FILE__, __LINE__);                                         \
    } while (0)

INVAR_EXPORT void invar_check_failed(const char *what, const char *file, int line)
#if defined(__GNUC__)
    __attribute__((noreturn))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
