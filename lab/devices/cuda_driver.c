/* A driver of CUDA that finds no GPU: its name, the functions that ggml calls, and what CUDA's runtime asks first.
 *
 * ggml's code for CUDA is linked against it where no driver is, and tests load it to see a machine with a driver, but no GPU.
 */
enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, NOT_FOUND = 500 };
enum { VERSION = 13050 };  /* of CUDA; the runtime refuses a driver older than itself */

#define ANSWERS(name, answer) \
    int name(void) { return answer; }

ANSWERS(cuInit, NO_DEVICE)
ANSWERS(cuDeviceGet, NO_DEVICE)
ANSWERS(cuDeviceGetAttribute, NO_DEVICE)
ANSWERS(cuGetErrorString, INVALID_VALUE)
ANSWERS(cuGetProcAddress, NOT_FOUND)
ANSWERS(cuGetProcAddress_v2, NOT_FOUND)
ANSWERS(cuMemAddressFree, NO_DEVICE)
ANSWERS(cuMemAddressReserve, NO_DEVICE)
ANSWERS(cuMemCreate, NO_DEVICE)
ANSWERS(cuMemGetAllocationGranularity, NO_DEVICE)
ANSWERS(cuMemMap, NO_DEVICE)
ANSWERS(cuMemRelease, NO_DEVICE)
ANSWERS(cuMemSetAccess, NO_DEVICE)
ANSWERS(cuMemUnmap, NO_DEVICE)

int cuDriverGetVersion(int *version) {
    *version = VERSION;
    return SUCCESS;
}
