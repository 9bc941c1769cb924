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
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif
#ifdef __SSE2__
#include <emmintrin.h>
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

enum { HEADER_SIZE = 56, FORMAT_PLAIN = 1, FORMAT_PACKED = 2, MAX_PACKED = 1 << 14 };
enum { LIFETIME_LEVEL = 127, LEVEL_SHIFT = 56 };
static const uint64_t INDEX_BIAS = (uint64_t)1 << 55;

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
    int64_t tile_ms;
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
static const char *read_plan(const Py_buffer *view, int64_t cell_size, Plan *plan) {
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
    if (of->tile_ms <= 0) return "plan: a size is out of range";
    const int64_t *at = (const int64_t *)view->buf + head;
    plan->partial = (const Partial *)at;
    plan->slot = (const Slot *)(at + 5 * of->partials);
    plan->output = (const Output *)(at + 5 * of->partials + 2 * of->slots);
    for (int64_t i = 0; i < of->partials; i++) {
        const Partial *p = &plan->partial[i];
        if (!in_cell(p->offset, 8, cell_size) || p->merge < 0 || p->merge >= MERGES ||
            p->valid_at < -1 || (p->valid_at >= 0 && !in_cell(p->valid_at, 1, cell_size)) ||
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

/* ---- records ------------------------------------------------------------------------------- */

/* The layout of a view's cells: a key, partials of eight bytes, and bytes of validity bits, in this
 * order. Their offsets follow from their kinds. */
typedef struct {
    int64_t id, time_column, levels, columns;
    const int64_t *step; /* levels: milliseconds of a tile */
    const int64_t *kind; /* columns */
    int64_t cell_size, texts;
} Layout;

enum { OF_INTEGERS, OF_FLOATS, OF_TEXTS, OF_BYTES, KINDS };
enum { LAYOUT_WORDS = 4, MAX_LEVELS = 100, MAX_COLUMNS = 1 << 16 };

static int64_t width_of(int64_t kind) { return kind == OF_BYTES ? 1 : 8; }

/* Check a layout; the arrays stay in the buffer. Returns what is wrong, or NULL. */
static const char *read_layout(const Py_buffer *view, Layout *layout) {
    int64_t words = view->len / 8;
    if (view->len % 8 || !is_aligned(view) || words < LAYOUT_WORDS) return "layout: wrong length";
    const int64_t *at = view->buf;
    layout->id = at[0];
    layout->time_column = at[1];
    layout->levels = at[2];
    layout->columns = at[3];
    if (layout->levels < 1 || layout->levels > MAX_LEVELS || layout->columns < 1 ||
        layout->columns > MAX_COLUMNS || layout->time_column < 0 ||
        layout->time_column >= layout->columns ||
        words != LAYOUT_WORDS + layout->levels + layout->columns)
        return "layout: a count is out of range";
    layout->step = at + LAYOUT_WORDS;
    layout->kind = layout->step + layout->levels;
    layout->cell_size = 8;
    layout->texts = 0;
    for (int64_t i = 0; i < layout->levels; i++)
        if (layout->step[i] < 1) return "layout: a tile has no length";
    for (int64_t i = 0; i < layout->columns; i++) {
        int64_t kind = layout->kind[i];
        if (kind < 0 || kind >= KINDS || (i && kind != OF_BYTES && layout->kind[i - 1] == OF_BYTES))
            return "layout: a kind is out of range";
        layout->cell_size += width_of(kind);
        layout->texts += kind == OF_TEXTS;
    }
    if (layout->kind[layout->time_column] != OF_INTEGERS) return "layout: times are integers";
    return NULL;
}

/* A record: its cells, and what the header says; a row without a record has no cells. What is at an
 * offset of a cell is at ``cells + offset * spread`` for the first one, and ``step`` bytes further for
 * each other; a byte of the validity bits ``byte_step`` further. So cells may be stored one after the
 * other (1, cell_size, cell_size), or column after column (count, 8, 1). */
typedef struct {
    int present;
    const uint8_t *cells;
    int64_t spread, step, byte_step;
    int64_t count, snapshot, event_high, pruned_high, bucket_high;
    const uint8_t *packed; /* columns that are to be unpacked, and their end */
    const uint8_t *packed_end;
    int64_t tail;
} Record;

static const uint8_t NOTHING[1];

/* Returns whether the bytes are a record of this layout; its columns are yet to be unpacked. */
static int read_record(const uint8_t *data, Py_ssize_t length, const Layout *layout,
                       Record *record) {
    if (length < HEADER_SIZE || (int64_t)load_u32(data + 8) != layout->id) return 0;
    /* at most 2^32 * 2^20 + 2^32: no overflow */
    int64_t count = load_u32(data + 16), tail = load_u32(data + 20);
    int64_t body = (int64_t)length - HEADER_SIZE - tail;
    if (data[0] == FORMAT_PLAIN) {
        if (body != count * layout->cell_size) return 0;
        record->packed = NULL;
    } else if (data[0] == FORMAT_PACKED) {
        if (body < 0 || count > MAX_PACKED) return 0;
        record->packed = data + HEADER_SIZE;
        record->packed_end = data + HEADER_SIZE + body;
    } else return 0;
    record->present = 1;
    record->cells = data + HEADER_SIZE;
    record->spread = 1;
    record->step = record->byte_step = layout->cell_size;
    record->count = count;
    record->tail = tail;
    record->snapshot = load_i64(data + 24);
    record->event_high = load_i64(data + 32);
    record->pruned_high = load_i64(data + 40);
    record->bucket_high = load_i64(data + 48);
    return 1;
}

/* ---- packed columns: see online/packing.py, whose bytes these are ---------------------------- */

enum { INTEGERS, DECIMALS, BITS, ALIKE };
enum { UNITS = 7, MAX_DECIMALS = 4, NEAR = 8 };
static const uint64_t UNIT[UNITS] = {1, 10, 100, 1000, 60000, 3600000, 86400000};
static const double POWER[MAX_DECIMALS + 1] = {1.0, 10.0, 100.0, 1000.0, 10000.0};

/* A number of up to eight bytes. */
static uint64_t load_bytes(const uint8_t *at, int width) {
    uint64_t value = 0;
    for (int i = 0; i < width; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* base + unit * number, of ``whole`` numbers of WIDTH bytes behind each of which eight can be read. Where
 * the width is a constant, it takes half of the instructions. */
#define UNPACK(WIDTH)                                                                              \
    for (; i < whole; i++)                                                                         \
        out[i] = base + unit * ((uint64_t)load_i64(at + i * (WIDTH)) & (~(uint64_t)0 >> (64 - 8 * (WIDTH))));

/* base + unit * number, of numbers of so many bytes that end before ``end``. */
static void unpack_numbers(const uint8_t *at, const uint8_t *end, int64_t count, int width,
                           uint64_t base, uint64_t unit, uint64_t *out) {
    if (width == 0) {
        for (int64_t i = 0; i < count; i++) out[i] = base;
        return;
    }
    /* eight bytes are read where there are as many, whatever follows the number's own */
    int64_t whole = end - at < 8 ? 0 : (end - at - 8) / width + 1, i = 0;
    if (whole > count) whole = count;
    switch (width) {
    case 1: UNPACK(1) break;
    case 2: UNPACK(2) break;
    case 3: UNPACK(3) break;
    case 4: UNPACK(4) break;
    case 5: UNPACK(5) break;
    case 6: UNPACK(6) break;
    case 7: UNPACK(7) break;
    default: UNPACK(8)
    }
    for (; i < count; i++) out[i] = base + unit * load_bytes(at + i * width, width);
}

/* Unpack one column that refers to no other. Returns the bytes behind it, NULL if it is damaged. */
static const uint8_t *unpack_own(const uint8_t *at, const uint8_t *end, int64_t count, int floats,
                                 uint64_t *out) {
    if (end - at < 2) return NULL;
    int coding = at[0] & 15, extra = at[0] >> 4, width = at[1] & 15, base_width = at[1] >> 4;
    at += 2;
    if (width > 8 || base_width > 8 || end - at < base_width + count * width) return NULL;
    uint64_t base = load_bytes(at, base_width);
    if (base_width && base_width < 8 && at[base_width - 1] & 128)
        base |= ~(uint64_t)0 << (8 * base_width);
    at += base_width;
    if (floats != (coding != INTEGERS)) return NULL;
    if (coding == INTEGERS) {
        if (extra >= UNITS) return NULL;
        unpack_numbers(at, end, count, width, base, UNIT[extra], out);
    } else if (coding == DECIMALS) {
        if (extra > MAX_DECIMALS) return NULL;
        const double power = POWER[extra];
        unpack_numbers(at, end, count, width, base, 1, out);
        for (int64_t i = 0; i < count; i++)
            out[i] = (uint64_t)bits_of((double)(int64_t)out[i] / power);
    } else if (coding == BITS && !extra && !base_width) {
        unpack_numbers(at, end, count, width, 0, width ? (uint64_t)1 << 8 * (8 - width) : 1, out);
    } else return NULL;
    return at + count * width;
}

/* The column as numbers of eight bytes, in place if it has them. */
static const uint64_t *widened(const uint8_t *column, int64_t count, int64_t kind, uint64_t *out) {
    if (kind != OF_BYTES) return (const uint64_t *)(const void *)column;
    for (int64_t i = 0; i < count; i++) out[i] = column[i];
    return out;
}

/* Unpack a column of a record, which may be like one before it. ``number`` has room for it twice. */
static const uint8_t *unpack_column(const Layout *layout, int64_t column, const uint8_t *at,
                                    const uint8_t *end, int64_t count, uint8_t *columns,
                                    int64_t offset, uint64_t *number) {
    int64_t kind = layout->kind[column];
    uint8_t *out = columns + offset * count;
    if (end - at < 2) return NULL;
    if ((at[0] & 15) != ALIKE && kind != OF_BYTES)
        return unpack_own(at, end, count, kind == OF_FLOATS, (uint64_t *)(void *)out);
    if ((at[0] & 15) == ALIKE) {
        int64_t back = at[1], other = column - back, before = offset;
        int differs = at[0] >> 4;
        if (back < 1 || other < 0 || layout->kind[other] != kind || kind == OF_TEXTS || differs > 1)
            return NULL;
        for (int64_t i = other; i < column; i++) before -= width_of(layout->kind[i]);
        const uint64_t *like = widened(columns + before * count, count, kind, number + count);
        at += 2;
        memmove(number, like, (size_t)count * 8);
        if (differs) {
            int64_t bytes = (count + 7) / 8, places = 0;
            if (end - at < bytes) return NULL;
            const uint8_t *mask = at;
            for (int64_t i = 0; i < count; i++) places += mask[i >> 3] >> (i & 7) & 1;
            uint64_t *others = number + count;
            at = unpack_own(at + bytes, end, places, kind == OF_FLOATS, others);
            if (at == NULL) return NULL;
            for (int64_t i = 0; i < count; i++)
                if (mask[i >> 3] >> (i & 7) & 1) number[i] = *others++;
        }
    } else {
        at = unpack_own(at, end, count, kind == OF_FLOATS, number);
        if (at == NULL) return NULL;
    }
    if (kind != OF_BYTES) {
        memcpy(out, number, (size_t)count * 8);
        return at;
    }
    for (int64_t i = 0; i < count; i++) {
        if (number[i] > 255) return NULL;
        out[i] = (uint8_t)number[i];
    }
    return at;
}

static uint64_t tile_start(const Layout *layout, int64_t level, uint64_t index) {
    return level < layout->levels ? index * (uint64_t)layout->step[level] : 0;
}

/* The index from which those of a level are counted back: of the newest event's tile. */
static uint64_t newest_index(const Layout *layout, int64_t level, int64_t event_high) {
    if (level >= layout->levels) return 0;
    int64_t step = layout->step[level], rest = event_high % step;
    return (uint64_t)(event_high / step - (rest < 0));
}

static uint64_t key_of(const Layout *layout, int64_t level, uint64_t index) {
    uint64_t number = level < layout->levels ? (uint64_t)level : LIFETIME_LEVEL;
    return (number << LEVEL_SHIFT) + INDEX_BIAS + index;
}

/* Unpack a record into columns, which have room for its cells; ``number`` has room for 2 * (count
 * + MAX_LEVELS + 1) numbers. Returns 0 if it is damaged. */
static int unpack_record(const Layout *layout, Record *record, uint8_t *columns, uint64_t *number) {
    const int64_t count = record->count, levels = layout->levels + 1;
    const uint8_t *at = record->packed, *end = record->packed_end;
    uint64_t counts[MAX_LEVELS + 1], newest[MAX_LEVELS + 1], *key = (void *)columns;
    at = unpack_own(at, end, levels, 0, counts);
    if (at == NULL) return 0;
    int64_t total = 0, runs = 0;
    for (int64_t level = 0; level < levels; level++) {
        if (counts[level] > (uint64_t)count) return 0;
        total += (int64_t)counts[level];
        runs += counts[level] > 0;
    }
    if (total != count || (at = unpack_own(at, end, levels, 0, newest)) == NULL ||
        (at = unpack_own(at, end, count - runs, 0, number)) == NULL)
        return 0;
    const uint64_t *gap = number + (count - runs);
    int64_t place = count;
    for (int64_t level = levels - 1; level >= 0; level--) {
        uint64_t index = newest_index(layout, level, record->event_high) - newest[level];
        for (uint64_t i = 0; i < counts[level]; i++) {
            if (i) index -= *--gap;
            key[--place] = index;
        }
    }
    int64_t offset = 8;
    for (int64_t i = 0; i < layout->columns; i++) {
        at = unpack_column(layout, i, at, end, count, columns, offset, number);
        if (at == NULL) return 0;
        if (i == layout->time_column) {
            uint64_t *time = (void *)(columns + offset * count);
            for (int64_t level = 0, cell = 0; level < levels; level++)
                for (uint64_t j = 0; j < counts[level]; j++, cell++)
                    time[cell] += tile_start(layout, level, key[cell]);
        }
        offset += width_of(layout->kind[i]);
    }
    if (at != end) return 0;
    for (int64_t level = 0, cell = 0; level < levels; level++)
        for (uint64_t j = 0; j < counts[level]; j++, cell++)
            key[cell] = key_of(layout, level, key[cell]);
    if (layout->texts) { /* lengths: their offsets follow, cell after cell */
        uint64_t begin = 0;
        for (int64_t cell = 0; cell < count; cell++)
            for (int64_t i = 0; i < layout->columns; i++) {
                if (layout->kind[i] != OF_TEXTS) continue;
                uint64_t *text = (uint64_t *)(void *)(columns + (i + 1) * 8 * count) + cell;
                uint64_t length = *text;
                if (length > (uint64_t)record->tail - begin) return 0;
                *text = begin | length << 32;
                begin += length;
            }
        if (begin != (uint64_t)record->tail) return 0;
    }
    record->cells = columns;
    record->spread = count;
    record->step = 8;
    record->byte_step = 1;
    record->packed = NULL;
    return 1;
}

/* How a column is packed. */
typedef struct {
    int coding, extra, width, base_width;
    uint64_t base;
    int64_t size;
} Coding;

static int bytes_of(uint64_t value) {
    int bytes = 0;
    for (; value; value >>= 8) bytes++;
    return bytes;
}

/* The bytes of a signed number; none for 0. */
static int signed_bytes(uint64_t value) {
    uint64_t size = (int64_t)value < 0 ? ~value : value;
    return value == 0 ? 0 : bytes_of(size >> 7) + 1 > 8 ? 8 : bytes_of(size >> 7) + 1;
}

static Coding code_integers(const uint64_t *number, int64_t count, int with_unit) {
    Coding coding = {INTEGERS, 0, 0, 0, 0, 2};
    if (count == 0) return coding;
    int64_t least = INT64_MAX, greatest = INT64_MIN;
    for (int64_t i = 0; i < count; i++) {
        int64_t value = (int64_t)number[i];
        if (value < least) least = value;
        if (value > greatest) greatest = value;
    }
    uint64_t base = (uint64_t)least, span = (uint64_t)greatest - base;
    for (int unit = UNITS - 1; with_unit && span && unit > 0; unit--) {
        int64_t i = 0;
        while (i < count && (number[i] - base) % UNIT[unit] == 0) i++;
        if (i < count) continue;
        coding.extra = unit;
        span /= UNIT[unit];
        break;
    }
    coding.base = base;
    coding.base_width = signed_bytes(base);
    coding.width = bytes_of(span);
    coding.size = 2 + coding.base_width + count * coding.width;
    return coding;
}

/* The numbers of floats that have so many decimals, all of them; 0 if one has not. */
static int as_decimals(const uint64_t *number, int64_t count, int decimals, uint64_t *out) {
    for (int64_t i = 0; i < count; i++) {
        double value = rint(float_of((int64_t)number[i]) * POWER[decimals]);
        if (!(fabs(value) < (double)EXACT_FLOAT)) return 0;
        int64_t whole = (int64_t)value;
        if (bits_of((double)whole / POWER[decimals]) != (int64_t)number[i]) return 0;
        out[i] = (uint64_t)whole;
    }
    return 1;
}

/* The best coding without another column; ``decimal`` gets the numbers of decimals. */
static Coding code_own(const uint64_t *number, int64_t count, int floats, uint64_t *decimal) {
    if (!floats) return code_integers(number, count, 1);
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) bits |= number[i];
    int width = 8;
    while (width && !(bits & 255)) bits >>= 8, width--;
    Coding coding = {BITS, 0, width, 0, 0, 2 + count * width};
    for (int decimals = 0; decimals <= MAX_DECIMALS; decimals++) {
        if (!as_decimals(number, count, decimals, decimal)) continue;
        Coding other = code_integers(decimal, count, 0);
        if (other.size > coding.size) break;
        other.coding = DECIMALS;
        other.extra = decimals;
        return other;
    }
    return coding;
}

static uint8_t *put_bytes(uint8_t *at, uint64_t value, int width) {
    for (int i = 0; i < width; i++, value >>= 8) at[i] = (uint8_t)value;
    return at + width;
}

/* Write a column; what lies between its end and ``end`` may change, too. */
static uint8_t *put_own(uint8_t *at, const uint8_t *end, const Coding *coding,
                        const uint64_t *number, int64_t count, const uint64_t *decimal) {
    *at++ = (uint8_t)(coding->coding | coding->extra << 4);
    *at++ = (uint8_t)(coding->width | coding->base_width << 4);
    at = put_bytes(at, coding->base, coding->base_width);
    const int width = coding->width;
    if (width == 0) return at;
    const uint64_t *from = coding->coding == DECIMALS ? decimal : number;
    const uint64_t unit = coding->coding == INTEGERS ? UNIT[coding->extra] : 1;
    const int shift = coding->coding == BITS ? 8 * (8 - width) : 0;
    for (int64_t i = 0; i < count; i++, at += width) {
        uint64_t value = (from[i] - coding->base) >> shift;
        if (unit != 1) value /= unit;
        if (end - at >= 8) memcpy(at, &value, 8);
        else put_bytes(at, value, width);
    }
    return at;
}

/* Pack a column, like one of those just before it if that is smaller. Returns the end of what was
 * written, NULL where ``end`` is too near. ``scratch`` has room for 2 * count numbers. */
static uint8_t *pack_column(const Layout *layout, int64_t column, const uint64_t *columns,
                            int64_t count, uint8_t *at, uint8_t *end, uint64_t *scratch) {
    const uint64_t *number = columns + column * count;
    const int64_t kind = layout->kind[column];
    const int floats = kind == OF_FLOATS;
    uint64_t *others = scratch + count;
    Coding own = code_own(number, count, floats, scratch);
    int64_t least = count, like = -1, seen = 0;
    for (int64_t i = column - 1; i >= 0 && column - i < 256 && seen < NEAR && kind != OF_TEXTS; i--) {
        if (layout->kind[i] != kind) continue;
        seen++;
        int64_t different = 0;
        for (int64_t cell = 0; cell < count && different < least; cell++)
            different += columns[i * count + cell] != number[cell];
        if (different < least) least = different, like = i;
    }
    if (like >= 0) {
        const int64_t mask_size = least ? (count + 7) / 8 : 0;
        Coding rest = {0, 0, 0, 0, 0, least ? 2 : 0};
        int64_t places = 0;
        if (2 + mask_size + rest.size < own.size) { /* it may be smaller */
            for (int64_t i = 0; i < count; i++)
                if (columns[like * count + i] != number[i]) others[places++] = number[i];
            if (places) rest = code_own(others, places, floats, scratch);
        }
        if (2 + mask_size + rest.size < own.size) {
            if (end - at < 2 + mask_size + rest.size) return NULL;
            *at++ = (uint8_t)(ALIKE | (places > 0) << 4);
            *at++ = (uint8_t)(column - like);
            memset(at, 0, (size_t)mask_size);
            for (int64_t i = 0; i < count && places; i++)
                if (columns[like * count + i] != number[i]) at[i >> 3] |= (uint8_t)(1 << (i & 7));
            at += mask_size;
            return places ? put_own(at, end, &rest, others, places, scratch) : at;
        }
        if (floats) own = code_own(number, count, floats, scratch); /* others used the scratch */
    }
    if (end - at < own.size) return NULL;
    return put_own(at, end, &own, number, count, scratch);
}

static uint8_t *pack_integers(const uint64_t *number, int64_t count, uint8_t *at, uint8_t *end) {
    Coding coding = code_integers(number, count, 1);
    return end - at < coding.size ? NULL : put_own(at, end, &coding, number, count, NULL);
}

/* Pack the cells of one record into less than their own size. Returns the packed size, -1 where it
 * would not be less, -2 for cells that are not in the order of levels. ``columns`` has room for all
 * columns and four more, of ``count`` + MAX_LEVELS + 1 numbers each. */
static int64_t pack_record(const Layout *layout, const uint8_t *cells, int64_t count,
                           int64_t event_high, uint8_t *out, uint64_t *columns) {
    uint8_t *at = out, *end = out + (count ? count * layout->cell_size - 1 : 0);
    const int64_t levels = layout->levels + 1;
    uint64_t counts[MAX_LEVELS + 1], newest[MAX_LEVELS + 1];
    uint64_t *index = columns + layout->columns * count, *scratch = index + count;
    memset(counts, 0, sizeof counts);
    memset(newest, 0, sizeof newest);
    int64_t gaps = 0, level = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t key = (uint64_t)load_i64(cells + i * layout->cell_size);
        int64_t number = (int64_t)(key >> LEVEL_SHIFT);
        if (number == LIFETIME_LEVEL) number = layout->levels;
        else if (number >= layout->levels) return -2;
        if (number < level) return -2;
        level = number;
        index[i] = key - key_of(layout, level, 0);
        if (counts[level]++) scratch[gaps++] = index[i] - index[i - 1];
        newest[level] = newest_index(layout, level, event_high) - index[i];
    }
    if ((at = pack_integers(counts, levels, at, end)) == NULL ||
        (at = pack_integers(newest, levels, at, end)) == NULL ||
        (at = pack_integers(scratch, gaps, at, end)) == NULL)
        return -1;
    int64_t offset = 8;
    for (int64_t i = 0; i < layout->columns; i++) {
        uint64_t *number = columns + i * count;
        const int64_t kind = layout->kind[i];
        for (int64_t cell = 0; cell < count; cell++) {
            const uint8_t *from = cells + cell * layout->cell_size + offset;
            number[cell] = kind == OF_BYTES ? *from
                           : kind == OF_TEXTS ? load_u32(from + 4) : (uint64_t)load_i64(from);
        }
        if (i == layout->time_column)
            for (int64_t run = 0, cell = 0; run < levels; run++)
                for (uint64_t j = 0; j < counts[run]; j++, cell++)
                    number[cell] -= tile_start(layout, run, index[cell]);
        at = pack_column(layout, i, columns, count, at, end, scratch);
        if (at == NULL) return -1;
        if (i == layout->time_column) /* as unpacked: later columns may be like the whole times */
            for (int64_t cell = 0; cell < count; cell++)
                number[cell] = (uint64_t)load_i64(cells + cell * layout->cell_size + offset);
        offset += width_of(kind);
    }
    return at - out;
}

typedef struct {
    Layout layout;
    Plan plan;
    Read read;
    const int64_t *bounds;
    int64_t rows, borders;
    Record *records;
    int64_t *below;  /* borders + 1: the number of the row's cells below each border */
    int64_t *newest; /* rows, windows */
    uint8_t *seen;   /* rows, windows */
    uint8_t *alike;  /* partials: see is_aged_alike */
    const uint8_t **validity; /* partials: of the record that is folded */
    double *scratch;
    int64_t *running; /* twice the cells of a record, and 2 */
    uint8_t *columns; /* of a packed record */
    uint64_t *number;
} Fold;

/* The cells of a range: from (inclusive) and to (exclusive); to >= from. */
static void range_of(const Fold *fold, int64_t window, int64_t range, int64_t *from, int64_t *to) {
    const int64_t *pair = fold->bounds + (window * fold->read.ranges + range) * 2;
    *from = fold->below[pair[0]];
    *to = fold->below[pair[1]];
    if (*to < *from) *to = *from;
}

/* Whether each cell's key is above that of the cell before it. */
static int is_ascending(const Record *record) {
    int ascending = 1;
    for (int64_t i = 1; i < record->count; i++)
        ascending &= load_i64(record->cells + (i - 1) * record->step) <
                     load_i64(record->cells + i * record->step);
    return ascending;
}

/* How many cells are below each border; cells are ascending. */
static void count_below(const Fold *fold, int64_t row, const int64_t *borders) {
    int64_t *below = fold->below, count = fold->borders;
    const Record *record = &fold->records[row];
    const int64_t step = record->step;
    for (int64_t i = 0; i < count; i++) { /* halves, without a branch that could be guessed wrong */
        int64_t from = 0;
        for (int64_t left = record->count; left > 1; left -= left / 2)
            from += load_i64(record->cells + (from + left / 2 - 1) * step) < borders[i] ? left / 2 : 0;
        below[i] = record->count ? from + (load_i64(record->cells + from * step) < borders[i]) : 0;
    }
    below[count] = record->count;
}

static int64_t time_of(const Fold *fold, int64_t row, int64_t cell) {
    const Record *record = &fold->records[row];
    return load_i64(record->cells + (fold->layout.time_column + 1) * 8 * record->spread +
                    cell * record->step);
}

static const uint8_t *column_of(const Record *record, const Partial *partial) {
    return record->cells + partial->offset * record->spread;
}

/* The validity bits of each partial in a record, at a byte of the first cell; NULL where each cell has a
 * value. */
static void find_validity(const Fold *fold, const Record *record) {
    for (int64_t i = 0; i < fold->plan.of.partials; i++) {
        const Partial *partial = &fold->plan.partial[i];
        fold->validity[i] = NULL;
        if (partial->valid_at < 0) continue;
        const uint8_t *valid = record->cells + partial->valid_at * record->spread;
        uint64_t all = 255;
        int64_t cell = 0;
        if (record->byte_step == 1) /* eight cells at a time */
            for (all = ~(uint64_t)0; cell + 8 <= record->count; cell += 8)
                all &= (uint64_t)load_i64(valid + cell);
        all &= all >> 32, all &= all >> 16, all &= all >> 8, all &= 255;
        for (; cell < record->count; cell++) all &= valid[cell * record->byte_step];
        if (!(all & (uint64_t)partial->valid_bit)) fold->validity[i] = valid;
    }
}

/* The newest event time of a window: of the last cell of some range, NEVER_MS without a cell. Returns
 * whether there is one. */
static uint8_t newest_in(const Fold *fold, int64_t row, int64_t window, int64_t *newest) {
    uint8_t seen = 0;
    *newest = NEVER_MS;
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, window, range, &from, &to);
        if (from == to) continue;
        seen = 1;
        int64_t time = time_of(fold, row, to - 1);
        if (time > *newest) *newest = time;
    }
    return seen;
}

static void newest_of_windows(const Fold *fold, int64_t row) {
    for (int64_t window = 0; window < fold->plan.of.windows; window++) {
        int64_t at = row * fold->plan.of.windows + window;
        fold->seen[at] = newest_in(fold, row, window, &fold->newest[at]);
    }
}

static int is_valid(const Record *record, const Partial *partial, const uint8_t *valid,
                    int64_t cell) {
    return valid == NULL || (valid[cell * record->byte_step] & partial->valid_bit) != 0;
}

/* Sums of integers over all windows of one partial: differences of running sums, exact even where
 * they wrap. Returns the number of the slot behind them. */
static int64_t fold_sums(const Fold *fold, int64_t first, int64_t row, int64_t *merged,
                         uint8_t *merged_valid) {
    const Sizes *of = &fold->plan.of;
    const Partial *partial = &fold->plan.partial[fold->plan.slot[first].partial];
    const Record *record = &fold->records[row];
    const uint8_t *cell = column_of(record, partial), *valid = fold->validity[fold->plan.slot[first].partial];
    int64_t count = record->count, *sum = fold->running, *known = sum + count + 1;
    sum[0] = known[0] = 0;
    for (int64_t i = 0; i < count && valid == NULL; i++, cell += record->step)
        sum[i + 1] = add_wrapping(sum[i], load_i64(cell));
    for (int64_t i = 0; i < count && valid != NULL; i++, cell += record->step) {
        int64_t is_known = is_valid(record, partial, valid, i);
        sum[i + 1] = add_wrapping(sum[i], load_i64(cell) & -is_known);
        known[i + 1] = known[i] + is_known;
    }
    int64_t at = first;
    for (; at < of->slots && fold->plan.slot[at].partial == fold->plan.slot[first].partial; at++) {
        int64_t total = 0, values = 0;
        for (int64_t range = 0; range < fold->read.ranges; range++) {
            int64_t from, to;
            range_of(fold, fold->plan.slot[at].window, range, &from, &to);
            total = add_wrapping(total, subtract_wrapping(sum[to], sum[from]));
            values += valid == NULL ? to - from : known[to] - known[from];
        }
        merged[at * fold->rows + row] = total;
        merged_valid[at * fold->rows + row] = values > 0;
    }
    return at;
}

/* Minima and maxima of integers. */
static int64_t fold_ints(const Fold *fold, const Slot *slot, int64_t row, uint8_t *valid) {
    const Partial *partial = &fold->plan.partial[slot->partial];
    const Record *record = &fold->records[row];
    const uint8_t *column = column_of(record, partial), *bits = fold->validity[slot->partial];
    const int64_t step = record->step;
    int64_t merged = partial->merge == OF_INT_MIN ? INT64_MAX : INT64_MIN;
    uint8_t any = 0;
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, slot->window, range, &from, &to);
        const uint8_t *cell = column + from * step;
        for (int64_t i = from; i < to; i++, cell += step) {
            int64_t value = load_i64(cell);
            if (!is_valid(record, partial, bits, i)) continue;
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
    const Record *record = &fold->records[row];
    const uint8_t *column = column_of(record, partial), *bits = fold->validity[slot->partial];
    const int64_t step = record->step;
    int sums = partial->merge == OF_FLOAT_SUM;
    double neutral = sums ? 0.0 : partial->merge == OF_FLOAT_MIN ? INFINITY : -INFINITY;
    double merged = neutral;
    uint8_t any = 0;
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, slot->window, range, &from, &to);
        const uint8_t *cell = column + from * step;
        double of_range = neutral;
        for (int64_t i = from; i < to; i++, cell += step) {
            int known = is_valid(record, partial, bits, i);
            double value = known ? load_f64(cell) : neutral;
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

/* How many tiles before the origin's tile a time is, which begins at ``origin``; negative: 0. The
 * reciprocal is 2^64 / tile_ms, rounded up: the quotient is exact up to ``near``. */
typedef struct { int64_t origin, tile_ms; uint64_t reciprocal, near; } Distance;

static Distance distance_from(int64_t origin, int64_t tile_ms) {
    Distance distance = {floor_to(origin, tile_ms), tile_ms, 0, 0};
    if (tile_ms > 1) {
        distance.reciprocal = UINT64_MAX / (uint64_t)tile_ms + 1;
        distance.near = UINT64_MAX / (uint64_t)tile_ms;
    }
    return distance;
}

static int64_t tiles_between(const Distance *distance, int64_t time) {
    /* as times are before the end of the origin's tile, mostly */
    uint64_t behind = (uint64_t)distance->origin + (uint64_t)distance->tile_ms - 1 - (uint64_t)time;
    if (behind < distance->near)
        return (int64_t)((unsigned __int128)behind * distance->reciprocal >> 64);
    return subtract_wrapping(distance->origin, floor_to(time, distance->tile_ms)) / distance->tile_ms;
}

/* The weight of a cell whose tile is so many before the origin's. Returns 0 and the length that the
 * table needs where it is too short. */
static int weight_of(const Py_buffer *table, int64_t place, double *weight, int64_t *needed) {
    if (place < 0) place = 0;
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
    const Record *record = &fold->records[row];
    const uint8_t *column = column_of(record, partial), *bits = fold->validity[slot->partial];
    const Py_buffer *table = &tables[partial->table];
    double merged = 0.0;
    size_t taken = 0;
    uint8_t any = 0;
    if (!by_range) {
        origin = NEVER_MS;
        for (int64_t range = 0; range < fold->read.ranges; range++) {
            int64_t from, to;
            range_of(fold, slot->window, range, &from, &to);
            for (int64_t i = from; i < to; i++) {
                int64_t time = time_of(fold, row, i);
                if (time > origin) origin = time;
            }
        }
    }
    const Distance distance = distance_from(origin, of->tile_ms);
    for (int64_t range = 0; range < fold->read.ranges; range++) {
        int64_t from, to;
        range_of(fold, slot->window, range, &from, &to);
        const uint8_t *cell = column + from * record->step;
        if (by_range) taken = 0;
        for (int64_t i = from; i < to; i++, cell += record->step) {
            int64_t time = time_of(fold, row, i);
            int64_t place = tiles_between(&distance, time);
            double weight;
            if (!weight_of(table, place, &weight, needed)) return 0.0;
            int known = is_valid(record, partial, bits, i);
            any |= known != 0;
            fold->scratch[taken++] = known ? load_f64(cell) * weight : 0.0;
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

/* The newest event before the horizon: from the cells, or pruned. */
static int64_t newest_before(const Fold *fold, int64_t row) {
    int64_t newest, pruned = fold->records[row].pruned_high;
    newest_in(fold, row, fold->plan.of.windows, &newest);
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

/* Where the results of a call are. */
typedef struct {
    int64_t *values, *merged, *newest, *snapshots, *of_windows;
    double *exponents;
    uint8_t *valid, *merged_valid, *codes;
} Results;

/* Fold the slots of a row; of those that decay only, if ``decayed``. */
static void fold_slots(const Fold *fold, int64_t row, int decayed, const Py_buffer *tables,
                       const Results *to, int64_t *needed) {
    const Sizes *of = &fold->plan.of;
    for (int64_t i = 0; i < of->slots;) {
        const Slot *slot = &fold->plan.slot[i];
        int64_t merge = fold->plan.partial[slot->partial].merge, at = i * fold->rows + row;
        if (merge == OF_DECAYED)
            to->merged[at] = bits_of(fold_decayed(fold, slot, row, fold->alike[slot->partial],
                                                  newest_of(fold, slot->partial, row), tables,
                                                  &to->merged_valid[at], needed));
        else if (decayed) { /* it is there already */
        } else if (merge == OF_INT_SUM) {
            i = fold_sums(fold, i, row, to->merged, to->merged_valid);
            continue;
        } else if (merge < OF_FLOAT_SUM)
            to->merged[at] = fold_ints(fold, slot, row, &to->merged_valid[at]);
        else
            to->merged[at] = bits_of(fold_floats(fold, slot, row, &to->merged_valid[at]));
        i++;
    }
}

static uint8_t status_of(const Read *read, const uint8_t *stale, int64_t row, int64_t newest) {
    int64_t code = stale == NULL ? read->present : stale[row];
    if (newest < read->ttl_from) code = read->expired;
    if (newest < read->known_from || newest == NEVER_MS) code = read->missing;
    return (uint8_t)code;
}

/* Unpack and fold the rows one by one: a record stays in the nearest cache for all of its slots. Returns
 * 0 where a record is damaged. */
static int fold_each(Fold *fold, const int64_t *borders, const uint8_t *stale,
                     const Py_buffer *tables, const Results *to, int behind, int decayed,
                     int64_t *needed) {
    const Sizes *of = &fold->plan.of;
    for (int64_t row = 0; row < fold->rows; row++) {
        Record *record = &fold->records[row];
        const Record packed = *record;
        if (packed.packed != NULL &&
            !unpack_record(&fold->layout, record, fold->columns, fold->number))
            return 0;
        if (!decayed && !is_ascending(record)) return 0;
        count_below(fold, row, borders);
        find_validity(fold, record);
        if (!decayed) {
            newest_of_windows(fold, row);
            for (int64_t window = 0; window < of->windows; window++)
                to->of_windows[window * fold->rows + row] = fold->newest[row * of->windows + window];
            int64_t newest = !record->present ? NEVER_MS
                             : behind ? newest_before(fold, row) : record->event_high;
            to->newest[row] = newest;
            to->snapshots[row] = record->present ? record->snapshot : NEVER_MS;
            to->codes[row] = status_of(&fold->read, stale, row, newest);
        }
        fold_slots(fold, row, decayed, tables, to, needed);
        *record = packed; /* the next one is unpacked to the same place */
    }
    return 1;
}

/* All of one call, when every buffer has been checked. Returns a new object, or NULL. */
static PyObject *fold_rows(Fold *fold, const int64_t *borders, const int64_t *read_ms,
                           const uint8_t *stale, const Py_buffer *tables, int64_t *words,
                           uint8_t *bytes) {
    const Sizes *of = &fold->plan.of;
    const int64_t rows = fold->rows;
    Results to;
    /* axes of words: outputs, slots, newest, snapshots, exponents, newest of windows; then rows */
    to.values = words;
    to.merged = to.values + of->outputs * rows;
    to.newest = to.merged + of->slots * rows;
    to.snapshots = to.newest + rows;
    to.exponents = (double *)(to.snapshots + rows);
    to.of_windows = to.snapshots + rows + of->exponents * rows;
    /* axes of bytes: outputs, slots, codes; then rows */
    to.valid = bytes;
    to.merged_valid = to.valid + of->outputs * rows;
    to.codes = to.merged_valid + of->slots * rows;

    int64_t bucket_high = NEVER_MS, found = 0, cells = 0, needed = 0;
    int behind = 0, again = 0;
    for (int64_t row = 0; row < rows; row++) {
        const Record *record = &fold->records[row];
        if (!record->present) continue;
        found++;
        cells += record->count;
        if (record->bucket_high > bucket_high) bucket_high = record->bucket_high;
        if (record->event_high >= fold->read.horizon) behind = 1;
    }
    for (int64_t i = 0; i < of->partials; i++)
        fold->alike[i] = fold->plan.partial[i].merge == OF_DECAYED;
    if (!fold_each(fold, borders, stale, tables, &to, behind, 0, &needed)) Py_RETURN_NONE;
    /* mostly they are alike; whether they are is known when all rows have been seen */
    for (int64_t i = 0; i < of->partials; i++)
        if (fold->alike[i] && !is_aged_alike(fold, i)) fold->alike[i] = 0, again = 1;
    if (again && !fold_each(fold, borders, stale, tables, &to, behind, 1, &needed)) Py_RETURN_NONE;
    if (needed) return PyLong_FromLongLong(needed);

    PyObject *flags = PyBytes_FromStringAndSize(NULL, of->outputs);
    if (flags == NULL) return NULL;
    char *flag = PyBytes_AsString(flags);
    for (int64_t i = 0; i < of->outputs; i++)
        flag[i] = (char)finish(fold, &fold->plan.output[i], read_ms, to.merged, to.merged_valid,
                               to.codes, to.values + i * rows, to.valid + i * rows, to.exponents);
    return Py_BuildValue("LLLN", (long long)found, (long long)cells, (long long)bucket_high, flags);
}

/* Read the headers of some rows' records. Returns 1, 0 where one is damaged, or -1 with an error set. */
static int read_records(PyObject *list, Py_ssize_t start, Fold *fold, int64_t *most) {
    const Layout *layout = &fold->layout;
    int64_t most_packed = 0;
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
        if (!read_record((const uint8_t *)data, length, layout, record)) return 0;
        if (record->count > *most) *most = record->count;
        if (record->packed != NULL && record->count > most_packed) most_packed = record->count;
    }
    fold->columns = malloc((size_t)(most_packed * layout->cell_size) + 8);
    fold->number = malloc(((size_t)most_packed + MAX_LEVELS + 1) * 16);
    if (fold->columns == NULL || fold->number == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 1;
}

enum { MAX_TABLES = 64 };

static PyObject *fold_checked(PyObject *list, Py_ssize_t start, Fold *fold, const Py_buffer *view,
                              const Py_buffer *tables) {
    const Py_buffer *keys = &view[1], *bounds = &view[2], *read_ms = &view[3], *read = &view[4];
    const Py_buffer *words = &view[5], *bytes = &view[6], *stale = &view[7];
    const char *problem = read_layout(&view[8], &fold->layout);
    if (problem == NULL) problem = read_plan(&view[0], fold->layout.cell_size, &fold->plan);
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
    fold->below = malloc((size_t)(fold->borders + 1) * 8);
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
    fold->validity = malloc(((size_t)of->partials + 1) * sizeof *fold->validity);
    if (!fold->scratch || !fold->running || !fold->alike || !fold->validity) return PyErr_NoMemory();
    return fold_rows(fold, keys->buf, read_ms->buf, stale->buf, tables, words->buf, bytes->buf);
}

PyDoc_STRVAR(fold_doc,
"fold(records, rows, layout, plan, keys, bounds, read_ms, read, words, bytes, stale, tables)\n"
"--\n\n"
"Decode records[start:stop] of rows = (start, stop), and fold and finish their windows; see\n"
"serving/reading/native_fold.py.");

static PyObject *fold_records(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *list, *stale, *tables;
    Py_ssize_t start, stop;
    Py_buffer view[9], table[MAX_TABLES];
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "O(nn)y*y*y*y*y*y*w*w*OO:fold", &list, &start, &stop, &view[8],
                          &view[0], &view[1], &view[2], &view[3], &view[4], &view[5], &view[6],
                          &stale, &tables))
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
    if (view[0].len >= (Py_ssize_t)sizeof(Sizes) && is_aligned(&view[0]) &&
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
    free(fold.validity);
    free(fold.columns);
    free(fold.number);
    for (Py_ssize_t i = 0; i < opened; i++) PyBuffer_Release(&table[i]);
    for (int i = 0; i < 9; i++) PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(unpack_doc,
"unpack(layout, records, rows)\n--\n\n"
"Decode the cells of records, all of which follow each other in rows. Returns the number of records\n"
"before the first one that is damaged, or does not fit.");

static PyObject *unpack(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *list, *result = NULL;
    Py_buffer view[2];
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*Ow*:unpack", &view[0], &list, &view[1])) return NULL;
    uint8_t *columns = NULL, *out = view[1].buf;
    uint64_t *number = NULL;
    int64_t room = 0;
    Layout layout;
    Py_ssize_t at = 0;
    const char *problem = read_layout(&view[0], &layout);
    if (problem != NULL || !PyList_Check(list)) {
        wrong(problem != NULL ? problem : "records: expected a list");
        goto done;
    }
    for (; at < PyList_Size(list); at++) {
        PyObject *item = PyList_GetItem(list, at);
        char *data;
        Py_ssize_t length;
        Record record;
        if (item == NULL || PyBytes_AsStringAndSize(item, &data, &length) < 0) goto done;
        if (!read_record((const uint8_t *)data, length, &layout, &record)) break;
        int64_t size = record.count * layout.cell_size;
        if (size > (uint8_t *)view[1].buf + view[1].len - out) break;
        if (record.packed == NULL) {
            memcpy(out, record.cells, (size_t)size);
            out += size;
            continue;
        }
        if (room <= record.count) {
            free(columns);
            free(number);
            room = 2 * record.count + 1;
            columns = malloc((size_t)(room * layout.cell_size) + 8);
            number = malloc(((size_t)room + MAX_LEVELS + 1) * 16);
            if (columns == NULL || number == NULL) {
                PyErr_NoMemory();
                goto done;
            }
        }
        if (!unpack_record(&layout, &record, columns, number)) break;
        for (int64_t i = -1, offset = 0; i < layout.columns; i++) {
            int64_t width = i < 0 ? 8 : width_of(layout.kind[i]);
            const uint8_t *from = columns + offset * record.count;
            for (int64_t cell = 0; cell < record.count; cell++)
                if (width == 8) memcpy(out + cell * layout.cell_size + offset, from + cell * 8, 8);
                else out[cell * layout.cell_size + offset] = from[cell];
            offset += width;
        }
        out += size;
    }
    result = PyLong_FromLongLong(at);
done:
    free(columns);
    free(number);
    for (int i = 0; i < 2; i++) PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(pack_doc,
"pack(layout, rows, offsets, event_high, out, sizes)\n--\n\n"
"Pack the cells of records, rows[offsets[i]:offsets[i + 1]]. The bytes of record i begin where its\n"
"cells would; sizes[i] is their number, -1 where they would not be fewer than those of its cells.");

static PyObject *pack(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *result = NULL;
    Py_buffer view[6];
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*w*:pack", &view[0], &view[1], &view[2], &view[3],
                          &view[4], &view[5]))
        return NULL;
    uint64_t *columns = NULL;
    Layout layout;
    const char *problem = read_layout(&view[0], &layout);
    if (problem != NULL) {
        wrong(problem);
        goto done;
    }
    const int64_t records = view[5].len / 8, cells = view[1].len / layout.cell_size;
    const int64_t *offset = view[2].buf, *event_high = view[3].buf;
    int64_t *sizes = view[5].buf, most = 0;
    if (view[1].len % layout.cell_size || view[4].len != view[1].len || view[5].len % 8 ||
        !has_items(&view[2], records + 1, 8) || !has_items(&view[3], records, 8) ||
        !is_aligned(&view[2]) || !is_aligned(&view[3]) || !is_aligned(&view[5])) {
        wrong("pack: lengths that do not fit");
        goto done;
    }
    for (int64_t i = 0; i <= records; i++)
        if (offset[i] < (i ? offset[i - 1] : 0) || offset[i] > cells) {
            wrong("offsets: out of range");
            goto done;
        }
    for (int64_t i = 0; i < records; i++) {
        int64_t count = offset[i + 1] - offset[i];
        if (count > most && count <= MAX_PACKED) most = count;
    }
    columns = malloc((size_t)(layout.columns + 4) * ((size_t)most + MAX_LEVELS + 1) * 8);
    if (columns == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (int64_t i = 0; i < records; i++) {
        int64_t count = offset[i + 1] - offset[i], at = offset[i] * layout.cell_size;
        sizes[i] = -1;
        if (count <= MAX_PACKED)
            sizes[i] = pack_record(&layout, (const uint8_t *)view[1].buf + at, count, event_high[i],
                                   (uint8_t *)view[4].buf + at, columns);
        if (sizes[i] == -2) {
            wrong("pack: cells that are not in the order of the view's levels");
            goto done;
        }
    }
    result = Py_None;
    Py_IncRef(result);
done:
    free(columns);
    for (int i = 0; i < 6; i++) PyBuffer_Release(&view[i]);
    return result;
}

PyDoc_STRVAR(count_doc,
"count(records, layout)\n--\n\n"
"The number of readable records in a list, and of their cells.");

static PyObject *count_records(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *list, *result = NULL;
    Py_buffer view;
    memset(&view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "Oy*:count", &list, &view)) return NULL;
    Layout layout;
    const char *problem = read_layout(&view, &layout);
    if (problem != NULL || !PyList_Check(list)) {
        wrong(problem != NULL ? problem : "count: expected a list of records");
        goto done;
    }
    long long records = 0, cells = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (item == NULL) goto done;
        if (item == Py_None) continue;
        char *data;
        Py_ssize_t length;
        Record record;
        if (PyBytes_AsStringAndSize(item, &data, &length) < 0) goto done;
        if (!read_record((const uint8_t *)data, length, &layout, &record)) continue;
        records++;
        cells += record.count;
    }
    result = Py_BuildValue("LL", records, cells);
done:
    PyBuffer_Release(&view);
    return result;
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

/* ---- numbers of replies in JSON ------------------------------------------------------------ */

static const char PAIRS[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546"
    "4748495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293"
    "949596979899";

/* Exactly so many digits of a number. */
static char *put_padded(char *at, uint64_t number, int digits) {
    int i = digits;
    for (; i >= 2; i -= 2, number /= 100) memcpy(at + i - 2, PAIRS + number % 100 * 2, 2);
    if (i) *at = (char)('0' + number % 10);
    return at + digits;
}

static const uint64_t TEN[] = {1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u, 10000000u,
                               100000000u, 1000000000u, 10000000000u, 100000000000u,
                               1000000000000u, 10000000000000u, 100000000000000u,
                               1000000000000000u, 10000000000000000u, 100000000000000000u,
                               1000000000000000000u, 10000000000000000000u};
enum { TENS = 19 };

static char *put_unsigned(char *at, uint64_t number) {
    int digits = 1;
    while (digits <= TENS && number >= TEN[digits]) digits++;
    return put_padded(at, number, digits);
}

static char *put_integer(char *at, int64_t number) {
    if (number >= 0) return put_unsigned(at, (uint64_t)number);
    *at++ = '-';
    return put_unsigned(at, 0 - (uint64_t)number);
}

/* The shortest decimal number that is read back as this float, and of those the nearest, as digits
 * and how many of them are decimals. The float is from 1e-4 to less than 1e15: then everything is
 * exact in 128 bits. */
static uint64_t shortest(double value, int *decimals) {
    double units = rint(value * 10000.0);
    if (units < 1e15 && units / 10000.0 == value) { /* up to 15 digits: no other is read as it */
        *decimals = 4;
        return (uint64_t)units;
    }
    const int64_t bits = bits_of(value);
    const uint64_t fraction = ((uint64_t)1 << 52) - 1;
    const uint64_t number = ((uint64_t)bits & fraction) | (fraction + 1);
    const int shift = 1075 - (int)(bits >> 52) + 2; /* value = 4 * number / 2^shift; 5 to 68 */
    int places = 16; /* so that there are 17 digits, or 18 */
    for (double power = 10.0; value >= power; power *= 10.0) places--;
    for (double power = 1.0; value < power; power /= 10.0) places++;
    const unsigned __int128 unit = (unsigned __int128)TEN[places / 2] * TEN[places - places / 2];
    const unsigned __int128 middle = 4 * number * unit;
    const unsigned __int128 lower = middle - (number == fraction + 1 ? 1 : 2) * unit;
    const unsigned __int128 upper = middle + 2 * unit, one = (unsigned __int128)1 << shift;
    /* whole numbers from least to greatest are read as the value, the ends too if it is even */
    const int even = !(number & 1);
    const uint64_t least = (uint64_t)(lower >> shift) + !(even && (lower & (one - 1)) == 0);
    const uint64_t greatest = (uint64_t)(upper >> shift) - (!even && (upper & (one - 1)) == 0);
    const uint64_t whole = (uint64_t)(middle >> shift);
    const unsigned __int128 rest = middle & (one - 1);
    uint64_t ten = 1;
    int dropped = 0;
    while (dropped < places && (least + 10 * ten - 1) / (10 * ten) * (10 * ten) <= greatest)
        ten *= 10, dropped++;
    const uint64_t below = whole / ten * ten;
    const unsigned __int128 twice = 2 * (((unsigned __int128)(whole - below) << shift) + rest);
    const unsigned __int128 all = (unsigned __int128)ten << shift;
    uint64_t nearest = twice > all || (twice == all && below / ten % 2) ? below + ten : below;
    if (nearest < least) nearest = below + ten;
    if (nearest > greatest) nearest = below;
    *decimals = places - dropped;
    return nearest / ten;
}

enum { NUMBER_SIZE = 32 };

/* A float as msgspec writes it; NULL for one that is not written here (see shortest). */
static char *put_float(char *at, double value) {
    if (bits_of(value) < 0) *at++ = '-', value = -value;
    int decimals = 1;
    uint64_t digits = 0;
    if (value != 0.0) {
        if (!(value >= 1e-4 && value < 1e15)) return NULL;
        digits = shortest(value, &decimals);
    }
    if (decimals < TENS) {
        at = put_unsigned(at, digits / TEN[decimals]);
        digits %= TEN[decimals];
    } else *at++ = '0';
    *at++ = '.';
    if (decimals == 0) decimals = 1; /* and digits are 0 */
    while (decimals > 1 && digits % 10 == 0) digits /= 10, decimals--;
    return put_padded(at, digits, decimals);
}

enum { INTEGER_NUMBERS, FLOAT_NUMBERS, WRITTEN, CONTENTS };

/* A column of a reply: numbers of all rows, and whether they are there; or its JSON. */
typedef struct {
    Py_buffer numbers, valid;
    const char *ending;
    Py_ssize_t ending_size;
} ReplyColumn;

static const char BETWEEN[] = "},{\"values\":";

static char *put_text(char *at, const char *text, Py_ssize_t size) {
    memcpy(at, text, (size_t)size);
    return at + size;
}

/* The bytes of a reply whose columns end at `at`; None if they could not be written. */
static PyObject *closed_reply(char *text, char *at) {
    if (at == NULL) {
        Py_IncRef(Py_None);
        return Py_None;
    }
    at = put_text(at, "}]}", 3);
    return PyBytes_FromStringAndSize(text, at - text);
}

/* The values of rows; NULL where one cannot be written. */
static char *put_values(char *at, const ReplyColumn *column, int content, Py_ssize_t start,
                        Py_ssize_t stop) {
    const uint8_t *number = column->numbers.buf, *valid = column->valid.buf;
    if (content == WRITTEN) return put_text(at, column->numbers.buf, column->numbers.len);
    *at++ = '[';
    for (Py_ssize_t row = start; row < stop; row++) {
        if (row > start) *at++ = ',';
        if (valid != NULL && !valid[row]) at = put_text(at, "null", 4);
        else if (content == INTEGER_NUMBERS) at = put_integer(at, load_i64(number + 8 * row));
        else if ((at = put_float(at, load_f64(number + 8 * row))) == NULL) return NULL;
    }
    *at++ = ']';
    return at;
}

/* Fill the columns; 0 with an error set. */
static int open_columns(PyObject *values, PyObject *valid, PyObject *endings,
                        const Py_buffer *contents, const Py_buffer *groups, Py_ssize_t stop,
                        ReplyColumn *column) {
    const uint8_t *content = contents->buf, *group = groups->buf;
    for (Py_ssize_t i = 0; i < contents->len; i++, column++) {
        if (i >= PyTuple_Size(values) || i >= PyTuple_Size(valid) || group[i] >= PyTuple_Size(endings)) {
            wrong("reply_json: a column without values, or without its ending");
            return 0;
        }
        PyObject *of = PyTuple_GetItem(values, i), *there = PyTuple_GetItem(valid, i);
        PyObject *ending = PyTuple_GetItem(endings, group[i]);
        char *text;
        if (of == NULL || there == NULL || ending == NULL ||
            PyObject_GetBuffer(of, &column->numbers, PyBUF_SIMPLE) < 0 ||
            (there != Py_None && PyObject_GetBuffer(there, &column->valid, PyBUF_SIMPLE) < 0) ||
            PyBytes_AsStringAndSize(ending, &text, &column->ending_size) < 0)
            return 0;
        column->ending = text;
        if (content[i] >= CONTENTS || (content[i] != WRITTEN && column->numbers.len / 8 < stop) ||
            (column->valid.buf != NULL && column->valid.len < stop)) {
            wrong("reply_json: a column has fewer rows, or contents that are not known");
            return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(reply_doc,
"reply_json(opening, values, valid, contents, endings, groups, start, stop)\n--\n\n"
"The opening and the results of rows start to stop, as serving.json_reply.feast_json writes them.\n"
"values has for each column its numbers (int64: contents 0, float64: contents 1) or its JSON (bytes,\n"
"contents 2), and valid None or a byte per row; groups says which of the endings each has. None\n"
"where a float is below 1e-4, from 1e15 on, infinite, or not a number.");

static PyObject *reply_json(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *values, *valid, *endings, *result = NULL;
    Py_buffer opening, contents, groups;
    Py_ssize_t start, stop;
    memset(&opening, 0, sizeof opening);
    contents = groups = opening;
    if (!PyArg_ParseTuple(arguments, "y*OOy*Oy*nn:reply_json", &opening, &values, &valid, &contents,
                          &endings, &groups, &start, &stop))
        return NULL;
    const Py_ssize_t count = contents.len;
    ReplyColumn *column = NULL;
    char *text = NULL;
    if (!PyTuple_Check(values) || !PyTuple_Check(valid) || !PyTuple_Check(endings) || start < 0 ||
        stop < start || stop > 1 << 24 || count > MAX_COLUMNS || groups.len != count) {
        wrong("reply_json: expected tuples of as many columns as contents, and rows in order");
        goto done;
    }
    column = calloc((size_t)count + 1, sizeof *column);
    if (column == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (!open_columns(values, valid, endings, &contents, &groups, stop, column)) goto done;
    /* a column's own part is below 2^30 bytes, and its other parts are in memory */
    size_t size = (size_t)opening.len + 4;
    for (Py_ssize_t i = 0; i < count; i++)
        size += sizeof BETWEEN + 2 + (size_t)column[i].ending_size +
                (((const uint8_t *)contents.buf)[i] == WRITTEN
                     ? (size_t)column[i].numbers.len
                     : (size_t)(stop - start) * NUMBER_SIZE);
    text = malloc(size);
    if (text == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    char *at = put_text(text, opening.buf, opening.len);
    for (Py_ssize_t i = 0; i < count && at != NULL; i++) {
        at = put_text(at, BETWEEN, sizeof BETWEEN - 1);
        at = put_values(at, &column[i], ((const uint8_t *)contents.buf)[i], start, stop);
        if (at != NULL) at = put_text(at, column[i].ending, column[i].ending_size);
    }
    result = closed_reply(text, at);
done:
    free(text);
    for (Py_ssize_t i = 0; i < count && column != NULL; i++) {
        PyBuffer_Release(&column[i].numbers);
        PyBuffer_Release(&column[i].valid);
    }
    free(column);
    PyBuffer_Release(&opening);
    PyBuffer_Release(&contents);
    PyBuffer_Release(&groups);
    return result;
}

/* ---- direct reads: keys from entities, and replies from what was folded ---------------------- */

enum { KEY_INT32, KEY_INT64, KEY_TEXT, KEY_KINDS };
enum { HASH_SEED = 42, BINARY_ROW = 16, INLINE_TEXT = 7, MAX_BUCKETS = 1 << 16, DIGITS = 21 };
enum { MAX_KEYS = 1 << 10 };

static uint32_t rotated(uint32_t x, int by) { return x << by | x >> (32 - by); }

static uint32_t mixed(uint32_t state, uint32_t word) {
    state ^= rotated(word * 0xCC9E2D51u, 15) * 0x1B873593u;
    return rotated(state, 13) * 5u + 0xE6546B64u;
}

static uint32_t mixed_word(uint32_t state, uint64_t word) {
    return mixed(mixed(state, (uint32_t)word), (uint32_t)(word >> 32));
}

/* The state after a word of zeros, Paimon's header and null bits, and the eight bytes of the key. */
static uint32_t mixed_slot(uint64_t slot) { return mixed_word(mixed_word(HASH_SEED, 0), slot); }

static int64_t bucket_from(uint32_t state, uint64_t bytes, int64_t buckets) {
    state ^= (uint32_t)bytes;
    state = (state ^ state >> 16) * 0x85EBCA6Bu;
    state = (state ^ state >> 13) * 0xC2B2AE35u;
    int64_t of = (int64_t)(int32_t)(state ^ state >> 16) % buckets;
    return of < 0 ? -of : of;
}

/* As buckets.bucket_of for one text; each of its last word's bytes that is behind its end is zero. */
static int64_t bucket_of_text(const char *text, Py_ssize_t length, int64_t buckets) {
    uint64_t slot = 0;
    if (length <= INLINE_TEXT) {
        memcpy(&slot, text, (size_t)length);
        return bucket_from(mixed_slot(slot | (uint64_t)(0x80 | length) << 56), BINARY_ROW, buckets);
    }
    uint32_t state = mixed_slot((uint64_t)BINARY_ROW << 32 | (uint32_t)length);
    const Py_ssize_t words = (length + 7) / 8 * 2;
    for (Py_ssize_t i = 0; i < words; i++) {
        uint32_t word = 0;
        Py_ssize_t left = length - 4 * i;
        if (left > 0) memcpy(&word, text + 4 * i, left < 4 ? (size_t)left : 4);
        state = mixed(state, word);
    }
    return bucket_from(state, BINARY_ROW + 4 * (uint64_t)words, buckets);
}

PyDoc_STRVAR(buckets_doc,
"buckets(slots, width, count, out)\n--\n\n"
"out[i], int32, is the bucket of ``count`` for row i of ``slots``, which has ``width`` columns of eight\n"
"bytes: as buckets.bucket_of for key columns of a fixed size.");

static PyObject *buckets(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer slots, out;
    Py_ssize_t width, count;
    if (!PyArg_ParseTuple(arguments, "y*nnw*:buckets", &slots, &width, &count, &out)) return NULL;
    PyObject *result = NULL;
    const Py_ssize_t rows = out.len / 4;
    if (width < 1 || width > MAX_KEYS || count < 1 || count > INT32_MAX || !is_aligned(&slots) ||
        !is_aligned(&out) || !has_items(&out, rows, 4) || !has_items(&slots, rows, 8 * width)) {
        wrong("buckets: buffers of different lengths");
        goto done;
    }
    PyThreadState *state = PyEval_SaveThread();
    const Py_ssize_t nulls = (width + 63 + 8) / 64;
    uint32_t begin = HASH_SEED;
    for (Py_ssize_t i = 0; i < nulls; i++) begin = mixed_word(begin, 0);
    const uint64_t *slot = slots.buf;
    int32_t *bucket = out.buf;
    for (Py_ssize_t row = 0; row < rows; row++) {
        uint32_t of = begin;
        for (Py_ssize_t i = 0; i < width; i++) of = mixed_word(of, *slot++);
        bucket[row] = (int32_t)bucket_from(of, 8 * (uint64_t)(nulls + width), count);
    }
    PyEval_RestoreThread(state);
    result = Py_None;
    Py_IncRef(result);
done:
    PyBuffer_Release(&slots);
    PyBuffer_Release(&out);
    return result;
}

/* The key of a text in its bucket: the stem, and the text with its escapes. */
static PyObject *text_key(const char *stem, Py_ssize_t size, const char *text, Py_ssize_t length) {
    Py_ssize_t escapes = 0;
    for (Py_ssize_t i = 0; i < length; i++) escapes += text[i] == '\\' || text[i] == '|';
    PyObject *key = PyBytes_FromStringAndSize(NULL, size + length + escapes);
    if (key == NULL) return NULL;
    char *at = put_text(PyBytes_AsString(key), stem, size);
    for (Py_ssize_t i = 0; i < length; i++) {
        if (text[i] == '\\' || text[i] == '|') *at++ = '\\';
        *at++ = text[i];
    }
    return key;
}

/* The record's key of one value, and its bucket. NULL without an error for a value that is not of the
 * kind. */
static PyObject *record_key(PyObject *value, int kind, PyObject *stems, int64_t *bucket) {
    const int64_t buckets = PyTuple_Size(stems);
    const char *text = NULL;
    char digits[DIGITS], *stem;
    Py_ssize_t length = 0, size;
    if (kind == KEY_TEXT) {
        if (value->ob_type != &PyUnicode_Type) return NULL;
        text = PyUnicode_AsUTF8AndSize(value, &length);
        if (text == NULL) { /* a surrogate: reported where all keys are checked */
            PyErr_Clear();
            return NULL;
        }
        if (length > INT32_MAX) return NULL;
        *bucket = bucket_of_text(text, length, buckets);
    } else {
        int overflow = 0;
        if (value->ob_type != &PyLong_Type) return NULL; /* True is no key */
        int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow || (kind == KEY_INT32 && (number < INT32_MIN || number > INT32_MAX)))
            return NULL;
        uint64_t slot = kind == KEY_INT32 ? (uint32_t)number : (uint64_t)number;
        *bucket = bucket_from(mixed_slot(slot), BINARY_ROW, buckets);
        length = put_integer(digits, number) - digits;
    }
    if (PyBytes_AsStringAndSize(PyTuple_GetItem(stems, (Py_ssize_t)*bucket), &stem, &size) < 0)
        return NULL;
    if (kind == KEY_TEXT) return text_key(stem, size, text, length);
    PyObject *key = PyBytes_FromStringAndSize(NULL, size + length);
    if (key != NULL) put_text(put_text(PyBytes_AsString(key), stem, size), digits, length);
    return key;
}

PyDoc_STRVAR(place_doc,
"place(values, kind, stems, markers, first)\n--\n\n"
"The keys of one read: first, the markers of the buckets in the order in which they are needed, and\n"
"the records of the entities with these values of their only key column (a list; kind 0: int32, 1:\n"
"int64, 2: string). stems and markers have the record keys' beginning and the marker's key of each\n"
"bucket. Returns the keys, the buckets, and the bucket of each entity as int32; None where a value is\n"
"not of the kind.");

static PyObject *place(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *values, *stems, *markers, *first;
    int kind;
    if (!PyArg_ParseTuple(arguments, "OiOOO:place", &values, &kind, &stems, &markers, &first))
        return NULL;
    if (!PyList_Check(values) || !PyTuple_Check(stems) || !PyTuple_Check(markers) || kind < 0 ||
        kind >= KEY_KINDS || PyTuple_Size(stems) < 1 || PyTuple_Size(stems) > MAX_BUCKETS ||
        PyTuple_Size(markers) != PyTuple_Size(stems))
        return wrong("place: expected a list of values, a kind, and two tuples of one length");
    const Py_ssize_t rows = PyList_Size(values);
    PyObject *records = PyList_New(0), *keys = PyList_New(0), *buckets = PyList_New(0);
    PyObject *bucket_of = PyBytes_FromStringAndSize(NULL, rows * 4), *result = NULL;
    uint8_t *seen = calloc((size_t)PyTuple_Size(stems), 1);
    if (seen == NULL) PyErr_NoMemory();
    if (!records || !keys || !buckets || !bucket_of || !seen || PyList_Append(keys, first) < 0)
        goto done;
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t bucket = 0;
        PyObject *value = PyList_GetItem(values, row);
        if (value == NULL) goto done;
        PyObject *key = record_key(value, kind, stems, &bucket);
        if (key == NULL) {
            if (!PyErr_Occurred()) result = Py_None, Py_IncRef(result);
            goto done;
        }
        int failed = PyList_Append(records, key);
        Py_DecRef(key);
        if (failed) goto done;
        int32_t narrow = (int32_t)bucket;
        memcpy(PyBytes_AsString(bucket_of) + 4 * row, &narrow, 4);
        if (seen[bucket]) continue;
        seen[bucket] = 1;
        PyObject *number = PyLong_FromLongLong(bucket);
        failed = number == NULL || PyList_Append(buckets, number) < 0 ||
                 PyList_Append(keys, PyTuple_GetItem(markers, (Py_ssize_t)bucket)) < 0;
        Py_DecRef(number);
        if (failed) goto done;
    }
    if (PyList_SetSlice(keys, PyList_Size(keys), PyList_Size(keys), records) < 0) goto done;
    result = Py_BuildValue("OOO", keys, buckets, bucket_of);
done:
    free(seen);
    Py_DecRef(records);
    Py_DecRef(keys);
    Py_DecRef(buckets);
    Py_DecRef(bucket_of);
    return result;
}

/* The statuses and event times of a result; NULL for a time outside the calendar. */
static char *put_ending(char *at, const Py_buffer *statuses, const Py_buffer *more,
                        const int64_t *newest, Py_ssize_t rows) {
    at = put_text(at, ",\"statuses\":", 12);
    at = put_text(at, statuses->buf, statuses->len);
    at = put_text(at, ",\"event_timestamps\":[", 21);
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t time = newest[row] == NEVER_MS ? 0 : newest[row];
        if (time < MIN_TIME_MS || time > MAX_TIME_MS) return NULL;
        if (row) *at++ = ',';
        at = put_time(at, time);
    }
    *at++ = ']';
    return put_text(at, more->buf, more->len);
}

PyDoc_STRVAR(reply_folded_doc,
"reply_folded(opening, words, valid, outputs, newest, rows, start, stop, statuses, more)\n--\n\n"
"As reply_json, from what fold has written for so many rows. outputs (words) has for each result\n"
"twice the place of its numbers, one more for floats, and newest is the place of the event times.\n"
"statuses is the JSON of the statuses of start to stop, the same for all results, and more is what\n"
"follows the event times. None also where one of those is outside the years 1 to 9999.");

static PyObject *reply_folded(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *result = NULL;
    Py_buffer view[6]; /* opening, words, valid, outputs, statuses, more */
    Py_ssize_t newest, rows, start, stop;
    char *text = NULL;
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*nnnny*y*:reply_folded", &view[0], &view[1], &view[2],
                          &view[3], &newest, &rows, &start, &stop, &view[4], &view[5]))
        return NULL;
    const Py_ssize_t count = view[3].len / 8, places = rows > 0 ? view[1].len / 8 / rows : 0;
    const int64_t *output = view[3].buf;
    if (rows < 1 || rows > 1 << 24 || start < 0 || stop < start || stop > rows || newest < 0 ||
        newest >= places || view[3].len % 8 || !is_aligned(&view[1]) || !is_aligned(&view[3]) ||
        count > MAX_COLUMNS) {
        wrong("reply_folded: rows, places, or lengths that do not fit each other");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (output[i] < 0 || output[i] / 2 >= places || output[i] / 2 >= view[2].len / rows) {
            wrong("reply_folded: an output is out of range");
            goto done;
        }
    const Py_ssize_t own = stop - start;
    const size_t of_ending = 40 + (size_t)view[4].len + (size_t)own * (TIME_SIZE + 1) +
                             (size_t)view[5].len;
    text = malloc((size_t)view[0].len + 4 +
                  (size_t)count * (sizeof BETWEEN + 2 + of_ending + (size_t)own * NUMBER_SIZE) +
                  of_ending);
    if (text == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    const int64_t *words = view[1].buf;
    char *at = put_text(text, view[0].buf, view[0].len), *ending = NULL, *end = NULL;
    for (Py_ssize_t i = 0; i < count && at != NULL; i++) {
        ReplyColumn column;
        memset(&column, 0, sizeof column);
        column.numbers.buf = (void *)(words + output[i] / 2 * rows);
        column.valid.buf = (uint8_t *)view[2].buf + output[i] / 2 * rows;
        at = put_text(at, BETWEEN, sizeof BETWEEN - 1);
        at = put_values(at, &column, output[i] % 2 ? FLOAT_NUMBERS : INTEGER_NUMBERS, start, stop);
        if (at == NULL) break;
        if (ending != NULL) {
            at = put_text(at, ending, end - ending);
            continue;
        }
        ending = at;
        end = at = put_ending(at, &view[4], &view[5], words + newest * rows + start, own);
    }
    result = closed_reply(text, at);
done:
    free(text);
    for (int i = 0; i < 6; i++) PyBuffer_Release(&view[i]);
    return result;
}

/* ---- orders and rows of a loader ----------------------------------------------------------- */

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u, MUL1 = 0xBF58476D1CE4E5B9u,
                      MUL2 = 0x94D049BB133111EBu;

static inline uint64_t feistel(uint64_t x, uint64_t a, uint64_t b, uint64_t key, int rounds) {
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

/* The permutation: again from where it left the numbers below the size. */
static inline uint64_t walk(uint64_t x, uint64_t size, uint64_t a, uint64_t b, uint64_t key) {
    do x = size < SMALL ? feistel(x, a, b, key, ROUNDS_SMALL) : feistel(x, a, b, key, ROUNDS);
    while (x >= size);
    return x;
}

/* Radices up to 2^31 whose product is at least the size: each walk from below the size ends there. */
static inline int walks_inside(uint64_t x, uint64_t size, uint64_t a, uint64_t b) {
    return x < size && a >= 1 && b >= 1 && a <= 1u << 31 && b <= 1u << 31 && a * b >= size &&
           a * b - size <= a + b;
}

/* Rows whose rounds are computed side by side. */
enum { TOGETHER = 64 };

typedef struct {
    uint64_t left[TOGETHER], right[TOGETHER], a[TOGETHER], b[TOGETHER], key[TOGETHER];
    Py_ssize_t piece[TOGETHER], place[TOGETHER];
} Walks;

/* The pieces of an order; see GlobalOrder. */
typedef struct {
    const int64_t *start, *first;
    const uint64_t *size, *a, *b, *key;
} Pieces;

/* A round for all rows, then the next: eight rows are one instruction where there is AVX-512. */
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx512f,avx512dq,avx512vl")))
#endif
static void wide_rounds(Walks *w) {
    for (int k = 0; k < ROUNDS; k++) {
        const uint64_t *source = k % 2 ? w->left : w->right, *radix = k % 2 ? w->b : w->a;
        uint64_t *target = k % 2 ? w->right : w->left;
        const uint64_t constant = (uint64_t)k * GOLDEN;
        for (int i = 0; i < TOGETHER; i++) {
            uint64_t h = (source[i] + w->key[i] + constant) * MUL1;
            h = ((h ^ h >> 29) * MUL2 >> 32) * radix[i] >> 32;
            h += target[i];
            target[i] = h - radix[i] < h ? h - radix[i] : h;
        }
    }
}

/* Whether processor and system have the instructions of wide_rounds; without, one row after the other
 * is faster. */
static int has_wide_rounds(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    static int known = -1; /* CPUID traps in a virtual machine */
    if (known >= 0) return known;
    unsigned a, b = 0, c, d, low, high;
    const unsigned needed = 1u << 16 | 1u << 17 | 1u << 31; /* AVX512F, DQ, VL */
    int has = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) && c & 1u << 27) { /* the system says what it saves */
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        has = (low & 0xE6) == 0xE6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
              (b & needed) == needed;
    }
    return known = has;
#else
    return 0;
#endif
}

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
        if (!walks_inside(x, size, left, right)) break;
        out[at] = walk(x, size, left, right, key);
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

/* A tile of rows: a column's values are read one after the other, and the lines of the rows that they
 * are written to stay in the first cache until all columns were there. Four columns at a time, whose
 * values go to one place, take half the time of one. */
#define INTERLEAVE(TYPE)                                                                           \
    for (Py_ssize_t low = 0; low < count; low += TILE) {                                           \
        const Py_ssize_t high = low + TILE < count ? low + TILE : count;                           \
        Py_ssize_t c = 0;                                                                          \
        for (; c + 4 <= width; c += 4) {                                                           \
            const TYPE *f0 = column[c].buf, *f1 = column[c + 1].buf, *f2 = column[c + 2].buf,      \
                       *f3 = column[c + 3].buf;                                                    \
            TYPE *to = (TYPE *)out.buf + first + c;                                                \
            for (Py_ssize_t i = low; i < high; i++) {                                              \
                const TYPE four[4] = {f0[i], f1[i], f2[i], f3[i]};                                 \
                memcpy(to + i * stride, four, sizeof four);                                        \
            }                                                                                      \
        }                                                                                          \
        for (; c < width; c++) {                                                                   \
            const TYPE *from = column[c].buf;                                                      \
            TYPE *to = (TYPE *)out.buf + first + c;                                                \
            for (Py_ssize_t i = low; i < high; i++) to[i * stride] = from[i];                      \
        }                                                                                          \
    }

enum { TILE = 64, LINE = 64 };

/* Lines of eight words, each written whole and past the caches: where a matrix is larger than those, a
 * line would be read from memory only to be overwritten. Returns the rows that are done. */
static Py_ssize_t stream_lines(const Py_buffer *column, Py_ssize_t width, uint64_t *to,
                               Py_ssize_t stride, Py_ssize_t count) {
#ifdef __SSE2__
    const Py_ssize_t pairs = count / 2 * 2;
    for (Py_ssize_t i = 0; i < pairs; i += 2)
        for (Py_ssize_t c = 0; c < width; c += 8) {
            __m128i low[4], high[4];
            for (int k = 0; k < 4; k++) {
                const uint64_t *left = column[c + 2 * k].buf, *right = column[c + 2 * k + 1].buf;
                const __m128i a = _mm_loadu_si128((const __m128i *)(left + i)),
                              b = _mm_loadu_si128((const __m128i *)(right + i));
                low[k] = _mm_unpacklo_epi64(a, b);
                high[k] = _mm_unpackhi_epi64(a, b);
            }
            __m128i *first = (__m128i *)(to + i * stride + c);
            __m128i *second = (__m128i *)(to + (i + 1) * stride + c);
            for (int k = 0; k < 4; k++) _mm_stream_si128(first + k, low[k]);
            for (int k = 0; k < 4; k++) _mm_stream_si128(second + k, high[k]);
        }
    _mm_sfence();
    return pairs;
#else
    (void)column, (void)width, (void)to, (void)stride, (void)count;
    return 0;
#endif
}

PyDoc_STRVAR(interleave_doc,
"interleave(columns, size, out, first, stride)\n--\n\n"
"out[row, first + column] = columns[column][row], of items of size bytes (1, 2, 4 or 8); a list of\n"
"buffers. A row of out has stride items.");

static PyObject *interleave(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *list;
    Py_ssize_t size, first, stride, width = 0, opened = 0;
    Py_buffer out, *column = NULL;
    memset(&out, 0, sizeof out);
    if (!PyArg_ParseTuple(arguments, "Onw*nn:interleave", &list, &size, &out, &first, &stride))
        return NULL;
    PyObject *result = NULL;
    if (!PyList_Check(list) || (width = PyList_Size(list)) < 1 ||
        (size != 1 && size != 2 && size != 4 && size != 8) || (uintptr_t)out.buf % (uintptr_t)size ||
        first < 0 || stride < width || first > stride - width || out.len % size ||
        out.len / size % stride) {
        wrong("interleave: items, columns and rows that do not fit");
        goto done;
    }
    const Py_ssize_t count = out.len / size / stride;
    column = calloc((size_t)width, sizeof *column);
    if (column == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; opened < width; opened++) {
        PyObject *item = PyList_GetItem(list, opened);
        if (item == NULL || PyObject_GetBuffer(item, &column[opened], PyBUF_SIMPLE) < 0) goto done;
        if (!has_items(&column[opened], count, size) ||
            (uintptr_t)column[opened].buf % (uintptr_t)size) {
            opened++;
            wrong("interleave: a column of another length");
            goto done;
        }
    }
    const int is_streamed = size == 8 && width % 8 == 0 && first % 8 == 0 && stride % 8 == 0 &&
                            width < stride && (uintptr_t)out.buf % LINE == 0;
    PyThreadState *state = PyEval_SaveThread();
    if (size == 8) {
        Py_ssize_t done_rows = 0;
        if (is_streamed)
            done_rows = stream_lines(column, width, (uint64_t *)out.buf + first, stride, count);
        for (Py_ssize_t i = done_rows; is_streamed && i < count; i++)
            for (Py_ssize_t c = 0; c < width; c++)
                ((uint64_t *)out.buf)[i * stride + first + c] = ((const uint64_t *)column[c].buf)[i];
        if (!is_streamed) INTERLEAVE(uint64_t)
    } else if (size == 4) INTERLEAVE(uint32_t)
    else if (size == 2) INTERLEAVE(uint16_t)
    else INTERLEAVE(uint8_t)
    PyEval_RestoreThread(state);
    result = Py_None;
    Py_IncRef(result);
done:
    for (Py_ssize_t i = 0; i < opened; i++) PyBuffer_Release(&column[i]);
    free(column);
    PyBuffer_Release(&out);
    return result;
}

/* What is left of so many walks: where they leave their sizes they go on one by one. */
static void finish_walks(const Walks *w, Py_ssize_t count, const Pieces *of, int64_t *out) {
    for (Py_ssize_t i = 0; i < count; i++) {
        const Py_ssize_t k = w->piece[i];
        uint64_t x = w->left[i] * w->b[i] + w->right[i];
        if (x >= of->size[k]) x = walk(x, of->size[k], of->a[k], of->b[k], of->key[k]);
        out[w->place[i]] = (int64_t)((uint64_t)of->first[k] + x);
    }
}

PyDoc_STRVAR(order_doc,
"order(positions, streams, cuts, pieces, out)\n--\n\n"
"Rows at positions of order.global_order.GlobalOrder: cuts are streams + 1 words, pieces six arrays\n"
"of one length: starts, sizes, both radices, keys, first rows.");

static PyObject *order(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer view[9];
    Py_ssize_t streams;
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*ny*(y*y*y*y*y*y*)w*:order", &view[0], &streams, &view[1],
                          &view[2], &view[3], &view[4], &view[5], &view[6], &view[7], &view[8]))
        return NULL;
    PyObject *result = NULL;
    const Py_ssize_t count = view[0].len / 8, pieces = view[2].len / 8;
    Py_ssize_t *newest = NULL, at = 0; /* the piece that each stream is in */
    int fits = streams > 0 && streams < INT32_MAX && pieces > 0 && has_items(&view[0], count, 8) &&
               has_items(&view[8], count, 8) && has_items(&view[1], streams + 1, 8);
    for (int i = 0; i < 9; i++)
        fits = fits && is_aligned(&view[i]) && (i < 2 || i > 7 || has_items(&view[i], pieces, 8));
    if (!fits) {
        wrong("order: buffers of different lengths");
        goto done;
    }
    newest = calloc((size_t)streams, sizeof *newest);
    if (newest == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    const int64_t *position = view[0].buf, *cut = view[1].buf;
    const Pieces of = {view[2].buf, view[7].buf, view[3].buf, view[4].buf, view[5].buf, view[6].buf};
    int64_t *out = view[8].buf;
    uint64_t before = 0, round = 0; /* a position, and how many of its stream are before it */
    Py_ssize_t stream = 0, waiting = 0;
    const int is_wide = has_wide_rounds();
    Walks walks;
    memset(&walks, 0, sizeof walks);
    PyThreadState *state = PyEval_SaveThread();
    for (; at < count; at++) {
        const uint64_t p = (uint64_t)position[at];
        if (p >> 62) break;
        if (p - before == 1) { /* mostly, and a division is slow */
            if (++stream == streams) {
                stream = 0;
                round++;
            }
        } else if (p != before) {
            stream = (Py_ssize_t)(p % (uint64_t)streams);
            round = p / (uint64_t)streams;
        }
        before = p;
        const int64_t slot = (int64_t)((uint64_t)cut[stream] + round);
        Py_ssize_t k = newest[stream];
        if (slot < of.start[k] || (uint64_t)slot - (uint64_t)of.start[k] >= of.size[k]) {
            Py_ssize_t low = 0, high = pieces; /* the last piece that begins at or before the slot */
            while (high - low > 1) {
                const Py_ssize_t middle = low + (high - low) / 2;
                if (of.start[middle] <= slot) low = middle;
                else high = middle;
            }
            newest[stream] = k = low;
        }
        const uint64_t x = (uint64_t)slot - (uint64_t)of.start[k];
        if (!walks_inside(x, of.size[k], of.a[k], of.b[k])) break;
        if (!is_wide || of.size[k] < SMALL) {
            out[at] = (int64_t)((uint64_t)of.first[k] +
                                walk(x, of.size[k], of.a[k], of.b[k], of.key[k]));
            continue;
        }
        /* b is below 2^32, and a division of so small a number is fast */
        walks.left[waiting] = x >> 32 ? x / of.b[k] : (uint32_t)x / (uint32_t)of.b[k];
        walks.right[waiting] = x - walks.left[waiting] * of.b[k];
        walks.a[waiting] = of.a[k];
        walks.b[waiting] = of.b[k];
        walks.key[waiting] = of.key[k];
        walks.piece[waiting] = k;
        walks.place[waiting] = at;
        if (++waiting == TOGETHER) {
            wide_rounds(&walks);
            finish_walks(&walks, waiting, &of, out);
            waiting = 0;
        }
    }
    if (waiting) {
        wide_rounds(&walks);
        finish_walks(&walks, waiting, &of, out);
    }
    PyEval_RestoreThread(state);
    if (at < count) {
        wrong("order: a position is not in the order");
        goto done;
    }
    result = Py_None;
    Py_IncRef(result);
done:
    free(newest);
    for (int i = 0; i < 9; i++) PyBuffer_Release(&view[i]);
    return result;
}

/* The last block that begins at or before a row, or the first; without a branch that could be guessed
 * wrong. */
static inline Py_ssize_t block_of(const int64_t *first, Py_ssize_t blocks, int64_t row) {
    Py_ssize_t low = 0;
    for (Py_ssize_t length = blocks; length > 1;) {
        const Py_ssize_t half = length / 2;
        low += first[low + half] <= row ? half : 0;
        length -= half;
    }
    return low;
}

PyDoc_STRVAR(group_doc,
"group(rows, firsts, counts, offsets, places)\n--\n\n"
"Sort rows by the block that they are in: block k has the rows from firsts[k] to firsts[k + 1]. Counts\n"
"are those of each block, offsets where in its block each row is, places where it was in rows.");

static PyObject *group(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer view[5];
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*y*w*w*w*:group", &view[0], &view[1], &view[2], &view[3],
                          &view[4]))
        return NULL;
    PyObject *result = NULL;
    uint32_t *home = NULL;
    int64_t *next = NULL;
    const Py_ssize_t count = view[0].len / 8, blocks = view[1].len / 8 - 1;
    int fits = blocks > 0 && blocks < INT32_MAX && has_items(&view[1], blocks + 1, 8) &&
               has_items(&view[2], blocks, 8);
    for (int i = 0; i < 5; i++)
        fits = fits && is_aligned(&view[i]) && (i == 1 || i == 2 || has_items(&view[i], count, 8));
    if (!fits) {
        wrong("group: buffers of different lengths");
        goto done;
    }
    home = malloc((size_t)count * sizeof *home + 1);
    next = malloc((size_t)blocks * sizeof *next);
    if (home == NULL || next == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    const int64_t *row = view[0].buf, *first = view[1].buf;
    int64_t *counts = view[2].buf, *offset = view[3].buf, *place = view[4].buf;
    int inside = 1;
    PyThreadState *state = PyEval_SaveThread();
    memset(counts, 0, (size_t)blocks * sizeof *counts);
    for (Py_ssize_t i = 0; i < count; i++) {
        const Py_ssize_t low = block_of(first, blocks, row[i]);
        inside &= row[i] >= first[low] && row[i] < first[low + 1];
        home[i] = (uint32_t)low;
        counts[low]++;
    }
    int64_t sum = 0;
    for (Py_ssize_t k = 0; k < blocks; k++) {
        next[k] = sum;
        sum += counts[k];
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const int64_t to = next[home[i]]++;
        offset[to] = (int64_t)((uint64_t)row[i] - (uint64_t)first[home[i]]);
        place[to] = i;
    }
    PyEval_RestoreThread(state);
    if (!inside) {
        wrong("group: a row is in no block");
        goto done;
    }
    result = Py_None;
    Py_IncRef(result);
done:
    free(home);
    free(next);
    for (int i = 0; i < 5; i++) PyBuffer_Release(&view[i]);
    return result;
}

/* The first place at or behind from whose value is not below key, in ascending values. The places of
 * ascending keys are near each other, if not the same: a few steps of eight without a branch, then in
 * doubling steps. */
static inline Py_ssize_t place_from(const int64_t *value, Py_ssize_t count, Py_ssize_t from, int64_t key) {
    if (from == count || value[from] >= key) return from;
    for (int turn = 0; turn < 4 && count - from >= 8; turn++) {
        int below = 0;
        for (int j = 0; j < 8; j++) below += value[from + j] < key;
        from += below;
        if (below < 8) return from;
    }
    Py_ssize_t length = 8;
    while (length <= count - from && value[from + length - 1] < key) {
        from += length;
        length *= 2;
    }
    length = length <= count - from ? length - 1 : count - from;
    while (length > 0) {
        const Py_ssize_t half = length / 2;
        if (value[from + half] < key) {
            from += half + 1;
            length -= half + 1;
        } else {
            length = half;
        }
    }
    return from;
}

PyDoc_STRVAR(locate_doc,
"locate(values, keys, places)\n--\n\n"
"places[i] = how many of the ascending values are below keys[i]. Returns how many keys are none of the\n"
"values, and how many equal the one before; None, with places unfinished, where one is below it.");

static PyObject *locate(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer view[3];
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "y*y*w*:locate", &view[0], &view[1], &view[2])) return NULL;
    PyObject *result = NULL;
    const Py_ssize_t count = view[0].len / 8, keys = view[1].len / 8;
    int fits = has_items(&view[0], count, 8) && has_items(&view[1], keys, 8) &&
               has_items(&view[2], keys, 8);
    for (int i = 0; i < 3; i++) fits = fits && is_aligned(&view[i]);
    if (!fits) {
        wrong("locate: buffers of different lengths");
        goto done;
    }
    const int64_t *value = view[0].buf, *key = view[1].buf;
    int64_t *place = view[2].buf;
    Py_ssize_t at = 0, others = 0, repeats = 0, next = 0;
    PyThreadState *state = PyEval_SaveThread();
    for (; next < keys && (next == 0 || key[next] >= key[next - 1]); next++) {
        repeats += next > 0 && key[next] == key[next - 1];
        at = place_from(value, count, at, key[next]);
        others += at == count || value[at] != key[next];
        place[next] = at;
    }
    PyEval_RestoreThread(state);
    if (next == keys) {
        result = Py_BuildValue("LL", (long long)others, (long long)repeats);
    } else {
        result = Py_None;
        Py_IncRef(result);
    }
done:
    for (int i = 0; i < 3; i++) PyBuffer_Release(&view[i]);
    return result;
}

/* More rows than the first cache can wait for at once: they are fetched into the second, which can. */
enum { FURTHER = 64 };

/* Short rows without a call; each is at least 16 bytes, or copied as any memory is. */
static inline void copy_row(char *to, const char *from, size_t size) {
    if (size < 16 || size > 256) {
        memcpy(to, from, size);
        return;
    }
    for (size_t at = 0; at + 16 <= size; at += 16) memcpy(to + at, from + at, 16);
    memcpy(to + size - 16, from + size - 16, 16);
}

PyDoc_STRVAR(pick_doc,
"pick(blocks, firsts, rows, size, out)\n--\n\n"
"out[i] = rows[i] of blocks of rows of size bytes: a list of one buffer a block, or None for a block\n"
"that no row is in; block k has the rows from firsts[k] to firsts[k + 1].");

static PyObject *pick(PyObject *self, PyObject *arguments) {
    (void)self;
    PyObject *list;
    Py_ssize_t size, opened = 0;
    Py_buffer view[3], *block = NULL;
    uint64_t *rows_of = NULL;
    memset(view, 0, sizeof view);
    if (!PyArg_ParseTuple(arguments, "Oy*y*nw*:pick", &list, &view[0], &view[1], &size, &view[2]))
        return NULL;
    PyObject *result = NULL;
    const Py_ssize_t blocks = view[0].len / 8 - 1, count = view[1].len / 8;
    if (!PyList_Check(list) || blocks < 1 || PyList_Size(list) != blocks || size < 1 ||
        !has_items(&view[0], blocks + 1, 8) || !has_items(&view[1], count, 8) ||
        !has_items(&view[2], count, size) || !is_aligned(&view[0]) || !is_aligned(&view[1])) {
        wrong("pick: blocks, rows and lengths that do not fit");
        goto done;
    }
    block = calloc((size_t)blocks, sizeof *block);
    rows_of = calloc((size_t)blocks, sizeof *rows_of);
    if (block == NULL || rows_of == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    const int64_t *first = view[0].buf, *row = view[1].buf;
    for (; opened < blocks; opened++) {
        PyObject *item = PyList_GetItem(list, opened);
        if (item == Py_None) continue;
        if (item == NULL || PyObject_GetBuffer(item, &block[opened], PyBUF_SIMPLE) < 0) goto done;
        rows_of[opened] = (uint64_t)(block[opened].len / size);
    }
    char *to = view[2].buf;
    const char *from[FURTHER]; /* rows that are on their way, each found so many rows before its copy */
    Py_ssize_t at = 0;
    PyThreadState *state = PyEval_SaveThread();
    for (; at < count + FURTHER; at++) {
        if (at >= FURTHER) {
            copy_row(to, from[at % FURTHER], (size_t)size);
            to += size;
        }
        if (at >= count) continue;
        const Py_ssize_t k = block_of(first, blocks, row[at]);
        const uint64_t offset = (uint64_t)row[at] - (uint64_t)first[k];
        if (row[at] < first[k] || offset >= rows_of[k]) break;
        const char *source = from[at % FURTHER] = (const char *)block[k].buf + offset * (uint64_t)size;
        for (Py_ssize_t line = 0; line < size && line < 512; line += 64)
            __builtin_prefetch(source + line, 0, 2);
        __builtin_prefetch(source + size - 1, 0, 2);
    }
    PyEval_RestoreThread(state);
    if (at < count + FURTHER) {
        wrong("pick: a row is in no block");
        goto done;
    }
    result = Py_None;
    Py_IncRef(result);
done:
    for (Py_ssize_t i = 0; block != NULL && i < opened; i++)
        if (block[i].obj != NULL) PyBuffer_Release(&block[i]);
    free(block);
    free(rows_of);
    for (int i = 0; i < 3; i++) PyBuffer_Release(&view[i]);
    return result;
}

/* ---- pages of Parquet files ---------------------------------------------------------------- */

/* Thrift's compact protocol. */
typedef struct {
    const uint8_t *at, *end;
} Thrift;

static int thrift_varint(Thrift *in, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 63 && in->at < in->end; shift += 7) {
        const uint8_t byte = *in->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0; /* cut off, or longer than any number of a header */
}

static int thrift_signed(Thrift *in, int64_t *value) {
    uint64_t word;
    if (!thrift_varint(in, &word)) return 0;
    *value = (int64_t)(word >> 1) ^ -(int64_t)(word & 1);
    return 1;
}

static int thrift_bytes(Thrift *in, uint64_t count) {
    if (count > (uint64_t)(in->end - in->at)) return 0;
    in->at += count;
    return 1;
}

/* The next field's number and type; 0 at the end of a struct, -1 where it is cut off. */
static int thrift_field(Thrift *in, int64_t *field, int *kind) {
    if (in->at == in->end) return -1;
    const uint8_t tag = *in->at++;
    if (tag == 0) return 0;
    *kind = tag & 15;
    if (tag >= 16) {
        if (*field > INT32_MAX) return -1;
        *field += tag >> 4;
    } else if (!thrift_signed(in, field)) return -1;
    return 1;
}

static int thrift_skip(Thrift *in, int kind, int depth) {
    uint64_t size;
    int64_t field = 0;
    int found, inner;
    if (kind == 1 || kind == 2) return 1;
    if (kind == 3) return thrift_bytes(in, 1);
    if (kind >= 4 && kind <= 6) return thrift_varint(in, &size);
    if (kind == 7) return thrift_bytes(in, 8);
    if (kind == 8) return thrift_varint(in, &size) && thrift_bytes(in, size);
    if (kind != 12 || depth > 7) return 0;
    while ((found = thrift_field(in, &field, &inner)) > 0)
        if (!thrift_skip(in, inner, depth + 1)) return 0;
    return found == 0;
}

/* A page's header: where its body is, and what is said of it; 0 if there is anything unusual. */
typedef struct {
    int64_t size, crc, values; /* crc -1: none */
} Page;

static int page_header(Thrift *in, Page *page) {
    int64_t field = 0, number, type = -1;
    int found, kind;
    *page = (Page){-1, -1, 0};
    while ((found = thrift_field(in, &field, &kind)) > 0) {
        if (kind == 5) {
            if (!thrift_signed(in, &number)) return 0;
            if (field == 1) type = number;
            else if (field == 3) page->size = number;
            else if (field == 4) page->crc = (int64_t)((uint64_t)number & 0xFFFFFFFFu);
        } else if (kind == 12 && (field == 5 || field == 8)) {
            Thrift inside = *in;
            if (inside.at == inside.end || *inside.at++ != 0x15 ||
                !thrift_signed(&inside, &page->values) || !thrift_skip(in, kind, 0))
                return 0;
        } else if (!thrift_skip(in, kind, 0)) return 0;
    }
    return found == 0 && type >= 0 && type <= 3 && page->size >= 0 && page->values >= 0;
}

PyDoc_STRVAR(pages_doc,
"pages(content, at, end)\n--\n\n"
"The pages that fill these bytes of a file: for each where its body begins and ends, its CRC32 or None,\n"
"and its number of values. None if there is anything unusual, which tables.storage.pages then names.");

static PyObject *pages(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer content;
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(arguments, "y*nn:pages", &content, &begin, &end)) return NULL;
    PyObject *result = NULL;
    if (begin < 0 || begin > end || end > content.len) {
        wrong("pages: not within the content");
        goto done;
    }
    const uint8_t *first = content.buf;
    Thrift in = {first + begin, first + end};
    result = PyList_New(0);
    while (result != NULL && in.at < in.end) {
        Page page;
        const int is_usual = page_header(&in, &page);
        const uint8_t *body = in.at;
        if (!is_usual || !thrift_bytes(&in, (uint64_t)page.size)) {
            Py_DecRef(result);
            result = Py_None;
            Py_IncRef(result);
            break;
        }
        const long long crc = page.crc, values = page.values;
        const Py_ssize_t start = body - first, stop = in.at - first;
        PyObject *one = crc < 0 ? Py_BuildValue("nnOL", start, stop, Py_None, values)
                                : Py_BuildValue("nnLL", start, stop, crc, values);
        if (one == NULL || PyList_Append(result, one) < 0) {
            Py_DecRef(result);
            result = NULL;
        }
        Py_DecRef(one);
    }
done:
    PyBuffer_Release(&content);
    return result;
}

/* ---- the module ---------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"fold", fold_records, METH_VARARGS, fold_doc},
    {"count", count_records, METH_VARARGS, count_doc},
    {"unpack", unpack, METH_VARARGS, unpack_doc},
    {"pack", pack, METH_VARARGS, pack_doc},
    {"times_json", times_json, METH_O, times_doc},
    {"reply_json", reply_json, METH_VARARGS, reply_doc},
    {"place", place, METH_VARARGS, place_doc},
    {"buckets", buckets, METH_VARARGS, buckets_doc},
    {"reply_folded", reply_folded, METH_VARARGS, reply_folded_doc},
    {"permute", permute, METH_VARARGS, permute_doc},
    {"move", move, METH_VARARGS, move_doc},
    {"interleave", interleave, METH_VARARGS, interleave_doc},
    {"order", order, METH_VARARGS, order_doc},
    {"group", group, METH_VARARGS, group_doc},
    {"locate", locate, METH_VARARGS, locate_doc},
    {"pick", pick, METH_VARARGS, pick_doc},
    {"pages", pages, METH_VARARGS, pages_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_core", "The native core; see core.c.", 0, methods, NULL, NULL, NULL,
    NULL,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module); }
