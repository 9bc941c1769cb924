/* The part of Python's stable ABI (3.11 and later) that core.c uses, for hosts without Python's
 * headers: Debian, for one, has them in a package of its own. Names and layouts of the stable ABI
 * never change (https://docs.python.org/3/c-api/stable.html); where Python.h is installed it is used,
 * and a test compiles and runs the core with either.
 */
#ifndef PAIMON_FEATURES_STABLE_ABI_H
#define PAIMON_FEATURES_STABLE_ABI_H
#include <stddef.h>

typedef ptrdiff_t Py_ssize_t;
typedef struct _typeobject PyTypeObject;
typedef struct _ts PyThreadState;
typedef struct _object {
    Py_ssize_t ob_refcnt;
    PyTypeObject *ob_type;
} PyObject;

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;
#define PyBUF_SIMPLE 0

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef struct {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;
#define METH_VARARGS 1
#define METH_O 8

struct PyModuleDef {
    struct {
        PyObject ob_base;
        PyObject *(*m_init)(void);
        Py_ssize_t m_index;
        PyObject *m_copy;
    } m_base;
    const char *m_name, *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    void *m_slots, *m_traverse, *m_clear, *m_free;
};
#define PyModuleDef_HEAD_INIT {{1, NULL}, NULL, 0, NULL}
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
#define PyDoc_STRVAR(name, text) static const char name[] = text

/* of sizes that are Py_ssize_t, as PY_SSIZE_T_CLEAN */
#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
int PyArg_ParseTuple(PyObject *, const char *, ...);
PyObject *Py_BuildValue(const char *, ...);

extern PyObject _Py_NoneStruct, *PyExc_ValueError;
extern PyTypeObject PyLong_Type, PyUnicode_Type;
#define Py_None (&_Py_NoneStruct)
#define Py_RETURN_NONE return Py_IncRef(Py_None), Py_None

void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
void PyBuffer_Release(Py_buffer *);
int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
char *PyBytes_AsString(PyObject *);
int PyBytes_AsStringAndSize(PyObject *, char **, Py_ssize_t *);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
void PyErr_Clear(void);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
void PyErr_SetString(PyObject *, const char *);
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
int PyList_Append(PyObject *, PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
PyObject *PyList_New(Py_ssize_t);
int PyList_SetSlice(PyObject *, Py_ssize_t, Py_ssize_t, PyObject *);
Py_ssize_t PyList_Size(PyObject *);
PyObject *PyList_New(Py_ssize_t);
int PyList_Append(PyObject *, PyObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject *);
long long PyLong_AsLongLongAndOverflow(PyObject *, int *);
PyObject *PyLong_FromLongLong(long long);
const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
PyObject *PyModuleDef_Init(struct PyModuleDef *);
unsigned long PyType_GetFlags(PyTypeObject *);

#define PyList_Check(object) ((PyType_GetFlags((object)->ob_type) >> 25 & 1) != 0)
#define PyTuple_Check(object) ((PyType_GetFlags((object)->ob_type) >> 26 & 1) != 0)
#endif
