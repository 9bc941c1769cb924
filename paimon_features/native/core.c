/* The native core: what runs for each cell or row and cannot be left to an array library.
 *
 * Every function takes buffers (PEP 688) and numbers, and writes into buffers that its caller made;
 * none keeps anything. NumPy's code next to each caller is the reference implementation: results are
 * equal to the bit, so floats are added in NumPy's order (pairwise_sum), and what depends on its
 * mathematical functions (exp2) is passed in as tables. No length or offset is trusted: what does
 * not fit raises ValueError, or, for records, is left to the reference implementation, whose errors
 * have the words.
 *
 * Stable ABI of Python 3.11 and later; compiled with -ffp-contract=off, without -ffast-math.
 */
#define PY_SSIZE_T_CLEAN
#ifdef PAIMON_FEATURES_OWN_HEADER
#include "stable_abi.h"
#else
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------- */

#define EXACT_FLOAT 9007199254740992LL /* 2^53: integers up to here are floats */
#define NEVER_MS (-4611686018427387904LL)

static int64_t load_i64(const uint8_t *at) {
    int64_t value;
    memcpy(&value, at, 8);
    return value;
}

static uint32_t load_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static double load_f64(const uint8_t *at) {
    double value;
    memcpy(&value, at, 8);
    return value;
}

static int64_t bits_of(double value) {
    int64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

static double float_of(int64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

static int64_t add_wrapping(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t subtract_wrapping(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

/* The start of the step that a time is in; as floor_ms. The step is positive. */
static int64_t floor_to(int64_t time, int64_t step) {
    int64_t rest = time % step;
    return subtract_wrapping(time, rest < 0 ? rest + step : rest);
}

/* NumPy's order of addition, as in numpy/_core/src/umath/loops_utils.h.src. */
static double pairwise_sum(const double *a, size_t n) {
    if (n < 8) {
        double sum = -0.0;
        for (size_t i = 0; i < n; i++) sum += a[i];
        return sum;
    }
    if (n <= 128) {
        double r[8];
        size_t i;
        memcpy(r, a, sizeof r);
        for (i = 8; i < n - n % 8; i += 8)
            for (size_t j = 0; j < 8; j++) r[j] += a[i + j];
        double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (; i < n; i++) sum += a[i];
        return sum;
    }
    size_t half = n / 2;
    half -= half % 8;
    return pairwise_sum(a, half) + pairwise_sum(a + half, n - half);
}

/* As np.add.reduceat over one segment, which is not empty. */
static double reduced_sum(const double *a, size_t n) {
    return n == 1 ? a[0] : a[0] + pairwise_sum(a + 1, n - 1);
}

/* As np.minimum and np.maximum: a NaN stays. */
static double float_min(double a, double b) { return (a <= b || a != a) ? a : b; }
static double float_max(double a, double b) { return (a >= b || a != a) ? a : b; }

/* ---- buffers ------------------------------------------------------------------------------- */

/* Whether a buffer has exactly this many items of this size, counted without overflow. */
static int has_items(const Py_buffer *view, int64_t items, int64_t size) {
    return items >= 0 && view->len % size == 0 && view->len / size == items;
}

static int is_aligned(const Py_buffer *view) { return ((uintptr_t)view->buf & 7) == 0; }

static PyObject *wrong(const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* ---- folds of records ---------------------------------------------------------------------- */

enum { HEADER_SIZE = 56, FORMAT = 1 };

/* How a partial is merged. */
enum { OF_INT_SUM, OF_INT_MIN, OF_INT_MAX, OF_FLOAT_SUM, OF_FLOAT_MIN, OF_FLOAT_MAX, OF_DECAYED, MERGES };

/* How a feature is finished from its merged partials. */
enum {
    LEFT,        /* by the aggregate itself */
    INT_TOTAL,   /* a sum of integers; 0 without values */
    FLOAT_TOTAL, /* a sum of floats; 0 without values */
    UNITS_TOTAL, /* a sum of integers divided by p; 0 without values */
    INT_VALUE,   /* an integer as it is */
    FLOAT_VALUE, /* a float as it is */
    UNITS_VALUE, /* an integer divided by p */
    INT_MEAN,    /* a sum of integers divided by (a count times p) */
    FLOAT_MEAN,  /* a sum of floats divided by a count */
    INT_RATE,    /* a sum of integers times p divided by q */
    FLOAT_RATE,  /* a sum of floats times the float p */
    DECAYED_TOTAL, /* a decayed sum; its last factor is 2^exponent, which the caller applies */
    DECAYED_MEAN,  /* a decayed sum divided by a decayed count */
    AGE,           /* time from an integer to the read */
    AGE_UNITS,     /* the same divided by p */
    OPERATIONS
};

typedef struct { int64_t offset, merge, valid_at, valid_bit, table; } Partial;
typedef struct { int64_t partial, window; } Slot;
typedef struct { int64_t operation, window, a, b, p, q, exponent; } Output;

typedef struct {
    int64_t layout, cell_size, tile_ms, time_offset;
    int64_t partials, windows, slots, outputs, tables, exponents;
} Sizes;

typedef struct {
    Sizes of;
    const Partial *partial;
    const Slot *slot;
    const Output *output;
} Plan;

/* What one call is about besides the plan and the records; all times in ms. */
typedef struct {
    int64_t horizon, ttl_from, known_from, ranges;
    int64_t present, expired, missing;
} Read;

static int in_cell(int64_t offset, int64_t size, int64_t cell_size) {
    return offset >= 0 && offset <= cell_size - size;
}

/* Check a plan; the arrays stay in the buffer. Returns what is wrong, or NULL. */
static const char *read_plan(const Py_buffer *view, Plan *plan) {
    if (view->len % 8 || !is_aligned(view)) return "plan: not a sequence of words";
    int64_t words = view->len / 8, head = sizeof(Sizes) / 8;
    if (words < head) return "plan: shorter than its sizes";
    memcpy(&plan->of, view->buf, sizeof(Sizes));
    const Sizes *of = &plan->of;
    const int64_t counts[] = {of->partials, of->windows, of->slots, of->outputs, of->tables,
                              of->exponents};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] < 0 || counts[i] > 1 << 16) return "plan: a count is out of range";
    if (words != head + 5 * of->partials + 2 * of->slots + 7 * of->outputs)
        return "plan: its length does not match its counts";
    if (of->tile_ms <= 0 || of->cell_size < 8 || of->cell_size > 1 << 20 ||
        !in_cell(of->time_offset, 8, of->cell_size))
        return "plan: a size is out of range";
    const int64_t *at = (const int64_t *)view->buf + head;
    plan->partial = (const Partial *)at;
    plan->slot = (const Slot *)(at + 5 * of->partials);
    plan->output = (const Output *)(at + 5 * of->partials + 2 * of->slots);
    for (int64_t i = 0; i < of->partials; i++) {
        const Partial *p = &plan->partial[i];
        if (!in_cell(p->offset, 8, of->cell_size) || p->merge < 0 || p->merge >= MERGES ||
            p->valid_at < -1 || (p->valid_at >= 0 && !in_cell(p->valid_at, 1, of->cell_size)) ||
            (p->merge == OF_DECAYED && (p->table < 0 || p->table >= of->tables)))
            return "plan: a partial is out of range";
    }
    for (int64_t i = 0; i < of->slots; i++) {
        const Slot *s = &plan->slot[i];
        if (s->partial < 0 || s->partial >= of->partials || s->window < 0 ||
            s->window >= of->windows)
            return "plan: a slot is out of range";
    }
    for (int64_t i = 0; i < of->outputs; i++) {
        const Output *o = &plan->output[i];
        if (o->operation < 0 || o->operation >= OPERATIONS || o->window < 0 ||
            o->window >= of->windows || o->a < 0 || o->a >= of->slots || o->b < 0 ||
            o->b >= of->slots || o->exponent < -1 || o->exponent >= of->exponents ||
            (o->operation == DECAYED_TOTAL && (o->exponent < 0 || o->p <= 0)) ||
            (o->operation == INT_RATE && (o->p <= 0 || o->q <= 0)))
            return "plan: an output is out of range";
    }
    return NULL;
}

/* A record: its cells, and what the header says; a row without a record has no cells. */
typedef struct {
    int present;
    const uint8_t *cells;
    int64_t count, snapshot, event_high, pruned_high, bucket_high;
} Record;

static const uint8_t NOTHING[1];

/* Returns whether the bytes are a record of this layout. */
static int read_record(const uint8_t *data, Py_ssize_t length, const Sizes *of, Record *record) {
    if (length < HEADER_SIZE || data[0] != FORMAT || (int64_t)load_u32(data + 8) != of->layout)
        return 0;
    /* at most 2^32 * 2^20 + 2^32: no overflow */
    int64_t count = load_u32(data + 16), tail = load_u32(data + 20);
    if (HEADER_SIZE + count * of->cell_size + tail != (int64_t)length) return 0;
    record->present = 1;
    record->cells = data + HEADER_SIZE;
    record->count = count;
    record->snapshot = load_i64(data + 24);
    record->event_high = load_i64(data + 32);
    record->pruned_high = load_i64(data + 40);
    record->bucket_high = load_i64(data + 48);
    return 1;
}

typedef struct {
    Plan plan;
    Read read;
    const int64_t *bounds;
    int64_t rows, borders;
    Record *records;
    int64_t *below;  /* rows, borders + 1: the number of cells below each border */
    int64_t *newest; /* rows, windows */
    uint8_t *seen;   /* rows, windows */
    uint8_t *alike;  /* partials: see is_aged_alike */
    double *scratch;
    int64_t *running; /* twice the cells of a record, and 2 */
} Fold;

/* The cells of a range: from (inclusive) and to (exclusive); to >= from. */
static void range_of(const Fold *fold, int64_t row, int64_t window, int64_t range, int64_t *from,
                     int64_t *to) {
    const int64_t *pair = fold->bounds + (window * fold->read.ranges + range) * 2;
    const int64_t *below = fold->below + row * (fold->borders + 1);
    *from = below[pair[0]];
    *to = below[pair[1]];
    if (*to < *from) *to = *from;
}

/* How many cells are below each border. Cells are ascending; others are counted just the same. */
static void count_below(const Fold *fold, int64_t row, const int64_t *borders) {
    int64_t *below = fold->below + row * (fold->borders + 1), count = fold->borders;
    const Record *record = &fold->records[row];
    int64_t step = fold->plan.of.cell_size, place = 0, previous = INT64_MIN;
    memset(below, 0, (size_t)(count + 1) * 8);
    for (int64_t i = 0; i < record->count; i++) {
        int64_t key = load_i64(record->cells + i * step);
        if (key < previous) place = 0;
        previous = key;
        while (place < count && borders[place] <= key) place++;
        below[place]++;
    }
    for (int64_t i = 1; i <= count; i++) below[i] += below[i - 1];
}

static int64_t time_of(const Fold *fold, int64_t row, int64_t cell) {
    const Sizes *of = &fold->plan.of;
    return load_i64(fold->records[row].cells + cell * of->cell_size + of->time_offset);
}

/* The newest event time of each window: of the last cell of each range. */
static void newest_of_windows(const Fold *fold, int64_t row) {
    for (int64_t window = 0; window < fold->plan.of.windows; window++) {
        int64_t newest = NEVER_MS;
        uint8_t seen = 0;
        for (int64_t range = 0; range < fold->read.ranges; range++) {
            int64_t from, to;
            range_of(fold, row, window, range, &from, &to);
            if (from == to) continue;
            seen = 1;
            int64_t time = time_of(fold, row, to - 1);
            if (time > newest) newest = time;
        }
        fold->newest[row * fold->plan.of.windows + window] = newest;
        fold->seen[row * fold->plan.of.windows + window] = seen;
    }
}

static int is_valid(const Partial *partial, const uint8_t *cell) {
    return partial->valid_at < 0 || (cell[partial->valid_at] & partial->valid_bit) != 0;
}

/* Sums of integers over all windows of one partial: differences of running sums, exact even where
 * they wrap. Returns the number of the slot behind them. */
static int64_t fold_sums(const Fold *fold, int64_t first, int64_t row, int64_t *merged,
                         uint8_t *merged_valid) {
    const Sizes *of = &fold->plan.of;
    const Partial *partial = &fold->plan.partial[fold->plan.slot[first].partial];
    const uint8_t *cell = fold->records[row].cells;
    int64_t count = fold->records[row].count, *sum = fold->running, *known = sum + count + 1;
    sum[0] = known[0] = 0;
    for (int64_t i = 0; i < count; i++, cell += of->cell_size) {
        sum[i + 1] = add_wrapping(sum[i], load_i64(cell + partial->offset));
        known[i + 1] = known[i] + (is_valid(partial, cell) != 0);
    }
    int64_t at = first;
    for (; at < of->slots && fold->plan.slot[at].partial == fold->plan.slot[first].partial; at++) {
        int64_t total = 0, values = 0;
        for (int64_t range = 0; range < fold->read.ranges; range++) {
            int64_t from, to;
            range_of(fold, row, fold->plan.slot[at].window, range, &from, &to);
            total = add_wrapping(total, subtract_wrapping(sum[to], sum[from]));
            values += known[to] - known[from];
        }
        merged[at * fold->rows + row] = total;
        merged_valid[at * fold->rows + row] = values > 0;
    }
    return at;
}

/* Minima and maxima of integers. */
static int64_t fold_ints(const Fold *fold, const Slot *slot, int64_t row, uint8_t *valid) {
    const Partial *partial = &fold->plan.partial[slot->partial];
    int64_t step = fold->plan.of.cell_size;
    int64_t merged = partial->merge == OF_INT_MIN ? INT64_MAX : INT64_MIN;
    uint8_t any = 0;
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, row, slot->window, range, &from, &to);
        const uint8_t *cell = fold->records[row].cells + from * step;
        for (int64_t i = from; i < to; i++, cell += step) {
            int64_t value = load_i64(cell + partial->offset);
            if (!is_valid(partial, cell)) continue;
            any = 1;
            if (partial->merge == OF_INT_MIN) merged = value < merged ? value : merged;
            else merged = value > merged ? value : merged;
        }
    }
    *valid = any;
    return merged;
}

/* Sums, minima and maxima of floats, range by range. */
static double fold_floats(const Fold *fold, const Slot *slot, int64_t row, uint8_t *valid) {
    const Partial *partial = &fold->plan.partial[slot->partial];
    int64_t step = fold->plan.of.cell_size;
    int sums = partial->merge == OF_FLOAT_SUM;
    double neutral = sums ? 0.0 : partial->merge == OF_FLOAT_MIN ? INFINITY : -INFINITY;
    double merged = neutral;
    uint8_t any = 0;
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, row, slot->window, range, &from, &to);
        const uint8_t *cell = fold->records[row].cells + from * step;
        double of_range = neutral;
        for (int64_t i = from; i < to; i++, cell += step) {
            int known = is_valid(partial, cell);
            double value = known ? load_f64(cell + partial->offset) : neutral;
            any |= known != 0;
            if (sums) fold->scratch[i - from] = value;
            else if (i == from) of_range = value;
            else of_range = partial->merge == OF_FLOAT_MIN ? float_min(of_range, value)
                                                        : float_max(of_range, value);
        }
        if (sums && to > from) of_range = reduced_sum(fold->scratch, (size_t)(to - from));
        if (range == 0) merged = of_range;
        else if (sums) merged = merged + of_range;
        else merged = partial->merge == OF_FLOAT_MIN ? float_min(merged, of_range)
                                                  : float_max(merged, of_range);
    }
    *valid = any;
    return merged;
}

/* The weight of a cell whose tile ended age_ms before the origin. Returns 0 and the length that the
 * table needs where it is too short. */
static int weight_of(const Py_buffer *table, int64_t age_ms, int64_t tile_ms, double *weight,
                     int64_t *needed) {
    int64_t place = age_ms <= 0 ? 0 : age_ms / tile_ms;
    if (place >= table->len / 8) {
        if (place >= *needed) *needed = place < INT64_MAX ? place + 1 : place;
        return 0;
    }
    *weight = ((const double *)table->buf)[place];
    return 1;
}

/* A decayed sum. ``by_range``: relative to ``origin``, the row's newest tile, range by range;
 * otherwise relative to the newest tile of the window's cells, all of them as one range. Both are
 * what the reference implementation does, which adds in these orders. */
static double fold_decayed(const Fold *fold, const Slot *slot, int64_t row, int by_range,
                           int64_t origin, const Py_buffer *tables, uint8_t *valid,
                           int64_t *needed) {
    const Partial *partial = &fold->plan.partial[slot->partial];
    const Sizes *of = &fold->plan.of;
    const Py_buffer *table = &tables[partial->table];
    double merged = 0.0;
    size_t taken = 0;
    uint8_t any = 0;
    if (!by_range) {
        origin = NEVER_MS;
        for (int64_t range = 0; range < fold->read.ranges; range++) {
            int64_t from, to;
            range_of(fold, row, slot->window, range, &from, &to);
            for (int64_t i = from; i < to; i++) {
                int64_t time = time_of(fold, row, i);
                if (time > origin) origin = time;
            }
        }
    }
    int64_t origin_tile = floor_to(origin, of->tile_ms);
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, row, slot->window, range, &from, &to);
        const uint8_t *cell = fold->records[row].cells + from * of->cell_size;
        if (by_range) taken = 0;
        for (int64_t i = from; i < to; i++, cell += of->cell_size) {
            int64_t time = load_i64(cell + of->time_offset);
            int64_t age = subtract_wrapping(origin_tile, floor_to(time, of->tile_ms));
            double weight;
            if (!weight_of(table, age, of->tile_ms, &weight, needed)) return 0.0;
            int known = is_valid(partial, cell);
            any |= known != 0;
            fold->scratch[taken++] = known ? load_f64(cell + partial->offset) * weight : 0.0;
        }
        if (by_range) {
            double of_range = to > from ? reduced_sum(fold->scratch, taken) : 0.0;
            merged = range == 0 ? of_range : merged + of_range;
        }
    }
    if (!by_range && taken) merged = reduced_sum(fold->scratch, taken);
    *valid = any;
    return merged;
}

/* The newest event time of a row in the windows of a partial. */
static int64_t newest_of(const Fold *fold, int64_t partial, int64_t row) {
    const Sizes *of = &fold->plan.of;
    int64_t latest = NEVER_MS;
    for (int64_t i = 0; i < of->slots; i++) {
        const Slot *slot = &fold->plan.slot[i];
        if (slot->partial != partial) continue;
        int64_t newest = fold->newest[row * of->windows + slot->window];
        if (newest > latest) latest = newest;
    }
    return latest;
}

/* Whether in each row all windows of a decayed partial that have cells have one newest tile. */
static int is_aged_alike(const Fold *fold, int64_t partial) {
    const Sizes *of = &fold->plan.of;
    for (int64_t row = 0; row < fold->rows; row++) {
        int64_t latest = newest_of(fold, partial, row);
        for (int64_t i = 0; i < of->slots; i++) {
            const Slot *slot = &fold->plan.slot[i];
            int64_t at = row * of->windows + slot->window;
            if (slot->partial == partial && fold->seen[at] && fold->newest[at] != latest) return 0;
        }
    }
    return 1;
}

/* The newest event before the horizon, as newest_before: from the cells, or pruned. */
static int64_t newest_before(const Fold *fold, int64_t row) {
    int64_t newest = NEVER_MS;
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, row, fold->plan.of.windows, range, &from, &to);
        for (int64_t i = from; i < to; i++) {
            int64_t time = time_of(fold, row, i);
            if (time > newest) newest = time;
        }
    }
    int64_t pruned = fold->records[row].pruned_high;
    return newest > pruned ? newest : pruned;
}

/* An integer divided by another, rounded once. Returns 0 where floats do not contain both. */
static int quotient(int64_t above, int64_t below, double *out) {
    if (above > EXACT_FLOAT || above < -EXACT_FLOAT || below > EXACT_FLOAT || below < 1) return 0;
    *out = (double)above / (double)below;
    return 1;
}

enum { HAS_NULL = 1, TOO_LARGE = 2 };

/* Finish one output over all rows. Returns HAS_NULL, and TOO_LARGE where exact integers are needed:
 * then the aggregate itself has to finish it. */
static int finish(const Fold *fold, const Output *output, const int64_t *read_ms,
                  const int64_t *merged, const uint8_t *merged_valid, const uint8_t *codes,
                  int64_t *values, uint8_t *valid, double *exponents) {
    const int64_t rows = fold->rows;
    const int64_t *a = merged + output->a * rows, *b = merged + output->b * rows;
    const uint8_t *a_valid = merged_valid + output->a * rows;
    const uint8_t *b_valid = merged_valid + output->b * rows;
    int flags = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t total = a_valid[row] ? a[row] : 0;
        double number = 0.0;
        int64_t bits = 0;
        uint8_t known = 1;
        switch (output->operation) {
        case INT_TOTAL: bits = total; break;
        case FLOAT_TOTAL: bits = bits_of(a_valid[row] ? float_of(total) + 0.0 : 0.0); break;
        case UNITS_TOTAL:
        case UNITS_VALUE:
            if (output->operation == UNITS_VALUE) known = a_valid[row];
            if (!quotient(total, output->p, &number)) return TOO_LARGE;
            bits = bits_of(number);
            break;
        case INT_VALUE:
            known = a_valid[row];
            bits = total;
            break;
        case FLOAT_VALUE:
            known = a_valid[row];
            bits = bits_of(known ? float_of(total) + 0.0 : 0.0);
            break;
        case INT_MEAN: {
            int64_t count = b_valid[row] && b[row] > 0 ? b[row] : 0;
            known = count > 0;
            if (!known) count = 1;
            if (output->p < 1 || count > EXACT_FLOAT / output->p ||
                !quotient(total, count * output->p, &number))
                return TOO_LARGE;
            bits = bits_of(number);
            break;
        }
        case FLOAT_MEAN: {
            int64_t count = b_valid[row] && b[row] > 0 ? b[row] : 0;
            known = count > 0;
            number = a_valid[row] ? float_of(total) + 0.0 : 0.0;
            bits = bits_of(number / (double)(known ? count : 1));
            break;
        }
        case INT_RATE:
            if (!(fabs((double)total) * (double)output->p < (double)EXACT_FLOAT)) return TOO_LARGE;
            bits = bits_of((double)(total * output->p) / (double)output->q);
            break;
        case FLOAT_RATE:
            number = a_valid[row] ? float_of(total) + 0.0 : 0.0;
            bits = bits_of(number * float_of(output->p));
            break;
        case DECAYED_TOTAL: {
            int64_t newest = fold->newest[row * fold->plan.of.windows + output->window];
            int64_t end = add_wrapping(floor_to(newest, fold->plan.of.tile_ms),
                                       fold->plan.of.tile_ms);
            int64_t since = subtract_wrapping(read_ms[output->window], end);
            bits = bits_of(a_valid[row] ? float_of(total) + 0.0 : 0.0);
            exponents[output->exponent * rows + row] =
                (double)subtract_wrapping(0, since) / (double)output->p;
            break;
        }
        case DECAYED_MEAN: {
            double weight = b_valid[row] ? float_of(b[row]) + 0.0 : 0.0;
            known = weight > 0;
            number = a_valid[row] ? float_of(total) + 0.0 : 0.0;
            bits = bits_of(number / (known ? weight : 1.0));
            break;
        }
        case AGE:
        case AGE_UNITS: {
            known = a_valid[row];
            int64_t age = known ? subtract_wrapping(read_ms[output->window], total) : 0;
            if (age < 0) age = 0;
            bits = output->operation == AGE ? age : bits_of((double)age / (double)output->p);
            break;
        }
        default: return TOO_LARGE; /* LEFT */
        }
        /* no value of an entity that is unknown or expired */
        if (codes[row] == fold->read.missing || codes[row] == fold->read.expired) known = 0;
        if (!known) flags |= HAS_NULL;
        values[row] = bits;
        valid[row] = known;
    }
    return flags;
}

/* All of one call, when every buffer has been checked. Returns a new object, or NULL. */
static PyObject *fold_rows(Fold *fold, const int64_t *borders, const int64_t *read_ms,
                           const uint8_t *stale, const Py_buffer *tables, int64_t *words,
                           uint8_t *bytes) {
    const Sizes *of = &fold->plan.of;
    const int64_t rows = fold->rows;
    /* axes of words: outputs, slots, newest, snapshots, exponents, newest of windows; then rows */
    int64_t *values = words, *merged = values + of->outputs * rows;
    int64_t *newest = merged + of->slots * rows, *snapshots = newest + rows;
    double *exponents = (double *)(snapshots + rows);
    int64_t *of_windows = snapshots + rows + of->exponents * rows;
    /* axes of bytes: outputs, slots, codes; then rows */
    uint8_t *valid = bytes, *merged_valid = valid + of->outputs * rows;
    uint8_t *codes = merged_valid + of->slots * rows;

    int64_t bucket_high = NEVER_MS, found = 0, cells = 0;
    int behind = 0;
    for (int64_t row = 0; row < rows; row++) {
        const Record *record = &fold->records[row];
        if (record->present) {
            found++;
            cells += record->count;
            if (record->bucket_high > bucket_high) bucket_high = record->bucket_high;
            if (record->event_high >= fold->read.horizon) behind = 1;
        }
        count_below(fold, row, borders);
        newest_of_windows(fold, row);
        for (int64_t window = 0; window < of->windows; window++)
            of_windows[window * rows + row] = fold->newest[row * of->windows + window];
    }
    for (int64_t row = 0; row < rows; row++) {
        const Record *record = &fold->records[row];
        int present = record->present;
        newest[row] = !present ? NEVER_MS : behind ? newest_before(fold, row) : record->event_high;
        snapshots[row] = present ? record->snapshot : NEVER_MS;
        int64_t code = stale == NULL ? fold->read.present : stale[row];
        if (newest[row] < fold->read.ttl_from) code = fold->read.expired;
        if (newest[row] < fold->read.known_from || newest[row] == NEVER_MS)
            code = fold->read.missing;
        codes[row] = (uint8_t)code;
    }

    int64_t needed = 0;
    for (int64_t i = 0; i < of->partials; i++)
        fold->alike[i] = fold->plan.partial[i].merge == OF_DECAYED && is_aged_alike(fold, i);
    /* row by row: a record stays in the nearest cache for all of its slots */
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < of->slots;) {
            const Slot *slot = &fold->plan.slot[i];
            int64_t merge = fold->plan.partial[slot->partial].merge, at = i * rows + row;
            if (merge == OF_INT_SUM) {
                i = fold_sums(fold, i, row, merged, merged_valid);
                continue;
            }
            if (merge < OF_FLOAT_SUM) merged[at] = fold_ints(fold, slot, row, &merged_valid[at]);
            else if (merge < OF_DECAYED)
                merged[at] = bits_of(fold_floats(fold, slot, row, &merged_valid[at]));
            else
                merged[at] = bits_of(fold_decayed(fold, slot, row, fold->alike[slot->partial],
                                                  newest_of(fold, slot->partial, row), tables,
                                                  &merged_valid[at], &needed));
            i++;
        }
    }
    if (needed) return PyLong_FromLongLong(needed);

    PyObject *flags = PyBytes_FromStringAndSize(NULL, of->outputs);
    if (flags == NULL) return NULL;
    char *flag = PyBytes_AsString(flags);
    for (int64_t i = 0; i < of->outputs; i++)
        flag[i] = (char)finish(fold, &fold->plan.output[i], read_ms, merged, merged_valid, codes,
                               values + i * rows, valid + i * rows, exponents);
    return Py_BuildValue("LLLN", (long long)found, (long long)cells, (long long)bucket_high, flags);
}

/* Read the records of some rows. Returns 1, 0 where one is damaged, or -1 with an error set. */
static int read_records(PyObject *list, Py_ssize_t start, Fold *fold, int64_t *most) {
    *most = 0;
    for (int64_t row = 0; row < fold->rows; row++) {
        PyObject *item = PyList_GetItem(list, start + (Py_ssize_t)row); /* borrowed */
        if (item == NULL) return -1;
        Record *record = &fold->records[row];
        record->cells = NOTHING;
        if (item == Py_None) continue;
        char *data;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(item, &data, &length) < 0) return -1;
        if (!read_record((const uint8_t *)data, length, &fold->plan.of, record)) return 0;
        if (record->count > *most) *most = record->count;
    }
    return 1;
}

enum { MAX_TABLES = 64 };

static PyObject *fold_checked(PyObject *list, Py_ssize_t start, Fold *fold, const Py_buffer *view,
                              const Py_buffer *tables) {
    const Py_buffer *keys = &view[1], *bounds = &view[2], *read_ms = &view[3], *read = &view[4];
    const Py_buffer *words = &view[5], *bytes = &view[6], *stale = &view[7];
    const char *problem = read_plan(&view[0], &fold->plan);
    if (problem != NULL) return wrong(problem);
    const Sizes *of = &fold->plan.of;
    const int64_t rows = fold->rows;
    if (!has_items(read, sizeof(Read) / 8, 8)) return wrong("read: wrong length");
    memcpy(&fold->read, read->buf, sizeof(Read));
    for (int i = 1; i < 6; i++)
        if (!is_aligned(&view[i])) return wrong("a buffer of words is not aligned");
    if (fold->read.ranges < 1 || fold->read.ranges > 1 << 10) return wrong("read: ranges");
    if (keys->len % 8 || keys->len / 8 > 1 << 20) return wrong("keys: wrong length");
    fold->borders = keys->len / 8;
    if (!has_items(bounds, (of->windows + 1) * fold->read.ranges * 2, 8))
        return wrong("bounds: wrong length");
    fold->bounds = bounds->buf;
    for (Py_ssize_t i = 0; i < bounds->len / 8; i++)
        if (fold->bounds[i] < 0 || fold->bounds[i] > fold->borders)
            return wrong("bounds: out of range");
    if (!has_items(read_ms, of->windows, 8)) return wrong("read times: wrong length");
    if (!has_items(words, (of->outputs + of->slots + 2 + of->exponents + of->windows) * rows, 8))
        return wrong("words: wrong length");
    if (!has_items(bytes, (of->outputs + of->slots + 1) * rows, 1))
        return wrong("bytes: wrong length");
    if (stale->buf != NULL && !has_items(stale, rows, 1)) return wrong("stale: wrong length");

    size_t of_rows = (size_t)rows + 1;
    fold->records = calloc(of_rows, sizeof(Record));
    fold->below = malloc(of_rows * (size_t)(fold->borders + 1) * 8);
    fold->newest = malloc(of_rows * (size_t)(of->windows + 1) * 8);
    fold->seen = malloc(of_rows * (size_t)(of->windows + 1));
    if (!fold->records || !fold->below || !fold->newest || !fold->seen) return PyErr_NoMemory();
    int64_t most;
    int readable = read_records(list, start, fold, &most);
    if (readable < 0) return NULL;
    if (readable == 0) Py_RETURN_NONE;
    /* overlapping ranges could name a cell more than once */
    fold->scratch = malloc(((size_t)most * (size_t)fold->read.ranges + 1) * 8);
    fold->running = malloc(((size_t)most + 1) * 2 * 8);
    fold->alike = malloc((size_t)of->partials + 1);
    if (!fold->scratch || !fold->running || !fold->alike) return PyErr_NoMemory();
    return fold_rows(fold, keys->buf, read_ms->buf, stale->buf, tables, words->buf, bytes->buf);
}

PyDoc_STRVAR(fold_doc,
"fold(records, start, stop, plan, keys, bounds, read_ms, read, words, bytes, stale, tables)\n--\n\n"
"Decode records[start:stop] and fold and finish their windows; see serving/native_fold.py.");

static PyObject *fold_records(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *list, *stale, *tables;
    Py_ssize_t start, stop;
    Py_buffer view[8], table[MAX_TABLES];
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "Onny*y*y*y*y*w*w*OO:fold", &list, &start, &stop, &view[0],
                          &view[1], &view[2], &view[3], &view[4], &view[5], &view[6], &stale,
                          &tables))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t opened = 0;
    Fold fold;
    memset(&fold, 0, sizeof fold);
    if (stale != Py_None && PyObject_GetBuffer(stale, &view[7], PyBUF_SIMPLE) < 0) goto done;
    if (!PyList_Check(list) || start < 0 || stop < start || stop > PyList_Size(list) ||
        stop - start > 1 << 24) {
        wrong("records: expected a list that contains start to stop");
        goto done;
    }
    if (!PyTuple_Check(tables) || PyTuple_Size(tables) > MAX_TABLES) {
        wrong("tables: expected a tuple of at most 64");
        goto done;
    }
    for (; opened < PyTuple_Size(tables); opened++) {
        PyObject *one = PyTuple_GetItem(tables, opened);
        if (one == NULL || PyObject_GetBuffer(one, &table[opened], PyBUF_SIMPLE) < 0) goto done;
        if (!is_aligned(&table[opened])) {
            opened++;
            wrong("a table is not aligned");
            goto done;
        }
    }
    fold.rows = stop - start;
    if (view[0].len >= (Py_ssize_t)sizeof(Sizes) &&
        ((const Sizes *)view[0].buf)->tables != opened) {
        wrong("tables: not as many as in the plan");
        goto done;
    }
    result = fold_checked(list, start, &fold, view, table);
done:
    free(fold.records);
    free(fold.below);
    free(fold.newest);
    free(fold.seen);
    free(fold.scratch);
    free(fold.running);
    free(fold.alike);
    for (Py_ssize_t i = 0; i < opened; i++) PyBuffer_Release(&table[i]);
    for (int i = 0; i < 8; i++) PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(count_doc,
"count(records, layout, cell_size)\n--\n\n"
"The number of readable records in a list, and of their cells.");

static PyObject *count_records(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *list;
    long long layout, cell_size;
    if (!PyArg_ParseTuple(arguments, "OLL:count", &list, &layout, &cell_size)) return NULL;
    if (!PyList_Check(list) || cell_size < 8 || cell_size > 1 << 20)
        return wrong("count: expected a list of records, and the size of a cell");
    Sizes of;
    memset(&of, 0, sizeof of);
    of.layout = layout;
    of.cell_size = cell_size;
    long long records = 0, cells = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (item == NULL) return NULL;
        if (item == Py_None) continue;
        char *data;
        Py_ssize_t length;
        Record record;
        if (PyBytes_AsStringAndSize(item, &data, &length) < 0) return NULL;
        if (!read_record((const uint8_t *)data, length, &of, &record)) continue;
        records++;
        cells += record.count;
    }
    return Py_BuildValue("LL", records, cells);
}

/* ---- statuses and event times of replies --------------------------------------------------- */

/* Proleptic Gregorian date of a day since 1970 (H. Hinnant, "chrono-compatible low-level date
 * algorithms"). */
static void date_of(int64_t days, int64_t *year, int *month, int *day) {
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    int64_t of_era = days - era * 146097;
    int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * years + years / 4 - years / 100);
    int64_t shifted = (5 * of_year + 2) / 153;
    *day = (int)(of_year - (153 * shifted + 2) / 5 + 1);
    *month = (int)(shifted < 10 ? shifted + 3 : shifted - 9);
    *year = years + era * 400 + (*month <= 2);
}

static char *put_digits(char *at, int64_t number, int digits) {
    for (int i = digits - 1; i >= 0; i--, number /= 10) at[i] = (char)('0' + number % 10);
    return at + digits;
}

enum { TIME_SIZE = 27 };

/* "2023-11-14T22:13:20.5Z" with its quotation marks; NEVER_MS is 1970. Years 1 to 9999. */
static char *put_time(char *at, int64_t time_ms) {
    int64_t days = floor_to(time_ms, 86400000), year;
    int month, day;
    int64_t rest = time_ms - days;
    date_of(days / 86400000, &year, &month, &day);
    *at++ = '"';
    at = put_digits(at, year, 4);
    *at++ = '-';
    at = put_digits(at, month, 2);
    *at++ = '-';
    at = put_digits(at, day, 2);
    *at++ = 'T';
    at = put_digits(at, rest / 3600000, 2);
    *at++ = ':';
    at = put_digits(at, rest / 60000 % 60, 2);
    *at++ = ':';
    at = put_digits(at, rest / 1000 % 60, 2);
    if (rest % 1000) {
        *at++ = '.';
        at = put_digits(at, rest % 1000, 3);
    }
    *at++ = 'Z';
    *at++ = '"';
    return at;
}

#define MIN_TIME_MS (-62135596800000LL) /* year 1 */
#define MAX_TIME_MS 253402300799999LL   /* year 9999 */

PyDoc_STRVAR(times_doc,
"times_json(times_ms)\n--\n\n"
"A JSON array of times (int64), as serving.json_reply.times_json. ValueError for one outside the\n"
"years 1 to 9999.");

static PyObject *times_json(PyObject *self, PyObject *argument) {
    (void)self;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *result = NULL;
    char *text = NULL;
    Py_ssize_t count = view.len / 8;
    if (view.len % 8) {
        wrong("times: not a sequence of words");
        goto done;
    }
    text = malloc((size_t)count * (TIME_SIZE + 1) + 2);
    if (text == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    char *at = text;
    *at++ = '[';
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t time = load_i64((const uint8_t *)view.buf + 8 * i);
        if (time == NEVER_MS) time = 0;
        if (time < MIN_TIME_MS || time > MAX_TIME_MS) {
            wrong("times: outside the years 1 to 9999");
            goto done;
        }
        if (i) *at++ = ',';
        at = put_time(at, time);
    }
    *at++ = ']';
    result = PyBytes_FromStringAndSize(text, at - text);
done:
    free(text);
    PyBuffer_Release(&view);
    return result;
}

/* ---- orders and rows of a loader ----------------------------------------------------------- */

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u, MUL1 = 0xBF58476D1CE4E5B9u,
                      MUL2 = 0x94D049BB133111EBu;

static uint64_t feistel(uint64_t x, uint64_t a, uint64_t b, uint64_t key, int rounds) {
    uint64_t left = x / b, right = x % b;
    for (int k = 0; k < rounds; k++) {
        uint64_t source = k % 2 ? left : right, target = k % 2 ? right : left;
        uint64_t radix = k % 2 ? b : a;
        uint64_t h = (source + key + (uint64_t)k * GOLDEN) * MUL1;
        h = ((h ^ h >> 29) * MUL2 >> 32) * radix >> 32;
        h += target;
        if (h - radix < h) h -= radix;
        if (k % 2) right = h;
        else left = h;
    }
    return left * b + right;
}

enum { ROUNDS = 6, ROUNDS_SMALL = 16, SMALL = 1024 };

PyDoc_STRVAR(permute_doc,
"permute(numbers, sizes, a, b, keys, out)\n--\n\n"
"The keyed permutation of order.permutation.permute_with: all words, of one length; each other\n"
"than numbers and out may be one word, for all.");

static PyObject *permute(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer view[6];
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*w*:permute", &view[0], &view[1], &view[2], &view[3],
                          &view[4], &view[5]))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t count = view[0].len / 8, step[5];
    int fits = has_items(&view[5], count, 8) && view[0].len % 8 == 0 && is_aligned(&view[5]);
    for (int i = 0; i < 5 && fits; i++) {
        step[i] = i && view[i].len == 8 ? 0 : 1;
        fits = is_aligned(&view[i]) && (step[i] == 0 || has_items(&view[i], count, 8));
    }
    if (!fits) {
        wrong("permute: buffers of different lengths");
        goto done;
    }
    const uint64_t *numbers = view[0].buf, *sizes = view[1].buf, *a = view[2].buf,
                   *b = view[3].buf, *keys = view[4].buf;
    uint64_t *out = view[5].buf;
    Py_ssize_t at = 0;
    PyThreadState *state = PyEval_SaveThread();
    for (; at < count; at++) {
        uint64_t x = numbers[at], size = sizes[at * step[1]], left = a[at * step[2]],
                 right = b[at * step[3]], key = keys[at * step[4]];
        /* radices up to 2^31 whose product is at least the size: each walk ends inside */
        if (x >= size || left < 1 || right < 1 || left > 1u << 31 || right > 1u << 31 ||
            left * right < size || left * right - size > left + right)
            break;
        int rounds = size < SMALL ? ROUNDS_SMALL : ROUNDS;
        do x = feistel(x, left, right, key, rounds);
        while (x >= size);
        out[at] = x;
    }
    PyEval_RestoreThread(state);
    if (at < count) {
        wrong("permute: a number is not below its size, or radices do not fit it");
        goto done;
    }
    result = Py_None;
    Py_IncRef(result);
done:
    for (int i = 0; i < 6; i++) PyBuffer_Release(&view[i]);
    return result;
}

/* A copy of count rows of SIZE bytes; where it is a constant the copy is a load and a store. Rows that
 * are read in any order are fetched some rows ahead. */
#define COPY_ROWS(SIZE)                                                                            \
    for (Py_ssize_t i = 0; i < count; i++) {                                                       \
        if (i + AHEAD < count) {                                                                   \
            if (rows) __builtin_prefetch(from + rows[i + AHEAD] * (SIZE));                         \
            if (places) __builtin_prefetch(to + places[i + AHEAD] * (SIZE), 1);                    \
        }                                                                                          \
        memcpy(to + (places ? places[i] : i) * (SIZE), from + (rows ? rows[i] : i) * (SIZE),       \
               (size_t)(SIZE));                                                                    \
    }

enum { AHEAD = 16 };

/* The numbers of a buffer of int64, all of them from 0 to below; or NULL with an error set. */
static const int64_t *numbers_below(const Py_buffer *view, int64_t below) {
    const int64_t *number = view->buf;
    Py_ssize_t count = view->len / 8;
    if (view->len % 8 || !is_aligned(view)) {
        wrong("rows: not a sequence of words");
        return NULL;
    }
    int inside = 1;
    for (Py_ssize_t i = 0; i < count; i++) inside &= (uint64_t)number[i] < (uint64_t)below;
    if (inside) return number;
    wrong("rows: a number is out of range");
    return NULL;
}

PyDoc_STRVAR(move_doc,
"move(source, rows, size, out, places)\n--\n\n"
"out[places[i]] = source[rows[i]] of rows of size bytes. Numbers are int64; None: 0, 1, 2, ...");

static PyObject *move(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer view[4];
    PyObject *numbers[2];
    Py_ssize_t size;
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*Onw*O:move", &view[0], &numbers[0], &size, &view[1],
                          &numbers[1]))
        return NULL;
    PyObject *result = NULL;
    for (int i = 0; i < 2; i++)
        if (numbers[i] != Py_None && PyObject_GetBuffer(numbers[i], &view[2 + i], PyBUF_SIMPLE) < 0)
            goto done;
    if (size < 1 || view[0].len % size || view[1].len % size) {
        wrong("rows: lengths that do not fit");
        goto done;
    }
    const char *from = view[0].buf;
    char *to = view[1].buf;
    const Py_ssize_t sources = view[0].len / size, targets = view[1].len / size;
    const int64_t *rows = NULL, *places = NULL;
    if (view[2].obj != NULL && (rows = numbers_below(&view[2], sources)) == NULL) goto done;
    if (view[3].obj != NULL && (places = numbers_below(&view[3], targets)) == NULL) goto done;
    const Py_ssize_t count = rows ? view[2].len / 8 : sources;
    if (count != (places ? view[3].len / 8 : targets)) {
        wrong("rows: lengths that do not fit");
        goto done;
    }
    PyThreadState *state = PyEval_SaveThread();
    if (size == 8) COPY_ROWS(8)
    else if (size == 4) COPY_ROWS(4)
    else COPY_ROWS(size)
    PyEval_RestoreThread(state);
    result = Py_None;
    Py_IncRef(result);
done:
    for (int i = 0; i < 4; i++) PyBuffer_Release(&view[i]);
    return result;
}

/* ---- the module ---------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"fold", fold_records, METH_VARARGS, fold_doc},
    {"count", count_records, METH_VARARGS, count_doc},
    {"times_json", times_json, METH_O, times_doc},
    {"permute", permute, METH_VARARGS, permute_doc},
    {"move", move, METH_VARARGS, move_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_core", "The native core; see core.c.", 0, methods, NULL, NULL, NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module); }
