// A Vulkan layer that makes a device full or lost, so that tests see what a program does then, and that counts calls.
//
//     BACKBAY_VULKAN_ROOM=BYTES    allocations that would hold more than this are refused, as on a full device
//     BACKBAY_VULKAN_LOST=FILE     the first process to see FILE removes it; from then on, its devices run as many submissions
//                                  as the number in it, and are lost
//     BACKBAY_VULKAN_COUNTS=FILE   FILE holds how often each function of COUNTED was called so far, as 64-bit numbers in order,
//                                  then submissions, their command buffers, and fences that a loop found to be ready
//
// software_vulkan.sh compiles it, and lets it be used where BACKBAY_VULKAN_FAULTS=1. A process has one instance and any number
// of devices.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define EXPORTED __attribute__((visibility("default")))
#define MOST 16

// Functions whose calls are counted, with their parameters and arguments; ggml_step_counts.py has the same order.
#define COUNTED(each) \
    each(void, vkCmdDispatch, CmdDispatch, (VkCommandBuffer of, uint32_t x, uint32_t y, uint32_t z), (of, x, y, z)) \
    each(void, vkCmdCopyBuffer, CmdCopyBuffer, \
         (VkCommandBuffer of, VkBuffer from, VkBuffer to, uint32_t count, const VkBufferCopy *parts), (of, from, to, count, parts)) \
    each(void, vkCmdFillBuffer, CmdFillBuffer, \
         (VkCommandBuffer of, VkBuffer to, VkDeviceSize at, VkDeviceSize size, uint32_t data), (of, to, at, size, data)) \
    each(void, vkCmdPipelineBarrier, CmdPipelineBarrier, \
         (VkCommandBuffer of, VkPipelineStageFlags from, VkPipelineStageFlags to, VkDependencyFlags flags, uint32_t a, \
          const VkMemoryBarrier *as, uint32_t b, const VkBufferMemoryBarrier *bs, uint32_t c, const VkImageMemoryBarrier *cs), \
         (of, from, to, flags, a, as, b, bs, c, cs)) \
    each(VkResult, vkWaitForFences, WaitForFences, \
         (VkDevice of, uint32_t count, const VkFence *fences, VkBool32 all, uint64_t limit), (of, count, fences, all, limit)) \
    each(VkResult, vkQueueWaitIdle, QueueWaitIdle, (VkQueue of), (of)) \
    each(VkResult, vkDeviceWaitIdle, DeviceWaitIdle, (VkDevice of), (of)) \
    each(VkResult, vkWaitSemaphores, WaitSemaphores, (VkDevice of, const VkSemaphoreWaitInfo *info, uint64_t limit), (of, info, limit))

#define NUMBER(type, name, short, parameters, arguments) of_##short,
enum { COUNTED(NUMBER) submissions, command_buffers, ready_fences, COUNTS };

typedef struct {
    void *key; // the loader's table, which a device and its queues begin with
    PFN_vkGetDeviceProcAddr next;
    PFN_vkAllocateMemory allocate;
    PFN_vkFreeMemory free;
    PFN_vkQueueSubmit submit;
    PFN_vkGetFenceStatus fence_status;
#define MEMBER(type, name, short, parameters, arguments) PFN_##name short;
    COUNTED(MEMBER)
} Device;

typedef struct {
    VkDeviceMemory memory;
    VkDeviceSize size;
} Held;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static PFN_vkGetInstanceProcAddr next_of_instance;
static Device devices[MOST];
static Held held[1 << 16];
static VkDeviceSize total;
static long submissions_left = -1; // without an end

static Device *device_of(void *handle) {
    for (int n = 0; n < MOST; n++)
        if (devices[n].key == *(void **)handle) return &devices[n];
    return NULL;
}

// -- counts ----------------------------------------------------------------------------------------------

static uint64_t *counts; // of this process and its children

static void map_counts(void) {
    static uint64_t nowhere[COUNTS];
    const char *path = getenv("BACKBAY_VULKAN_COUNTS");
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    counts = nowhere;
    if (file >= 0 && ftruncate(file, sizeof nowhere) == 0) {
        void *mapped = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) counts = mapped;
    }
    if (file >= 0) close(file);
}

static void count_call(int which, uint64_t by) { __atomic_fetch_add(&counts[which], by, __ATOMIC_RELAXED); }

#define FUNCTION(type, name, short, parameters, arguments) \
    static VKAPI_ATTR type VKAPI_CALL short parameters { \
        count_call(of_##short, 1); \
        return device_of(of)->short arguments; \
    }
COUNTED(FUNCTION)

static VKAPI_ATTR VkResult VKAPI_CALL fence_status(VkDevice device, VkFence fence) {
    VkResult result = device_of(device)->fence_status(device, fence);
    if (result == VK_SUCCESS) count_call(ready_fences, 1);
    return result;
}

// -- full ------------------------------------------------------------------------------------------------

static Held *place_of(VkDeviceMemory memory) {
    for (size_t n = 0; n < sizeof held / sizeof *held; n++)
        if (held[n].memory == memory) return &held[n];
    return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(
    VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *callbacks, VkDeviceMemory *memory) {
    const char *room = getenv("BACKBAY_VULKAN_ROOM");
    pthread_mutex_lock(&lock);
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    Held *place = place_of(VK_NULL_HANDLE);
    if (place && (!room || total + info->allocationSize <= strtoull(room, NULL, 10)))
        result = device_of(device)->allocate(device, info, callbacks, memory);
    if (result == VK_SUCCESS) {
        *place = (Held){*memory, info->allocationSize};
        total += info->allocationSize;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL give_back(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *callbacks) {
    pthread_mutex_lock(&lock);
    Held *place = memory == VK_NULL_HANDLE ? NULL : place_of(memory);
    if (place) {
        total -= place->size;
        *place = (Held){VK_NULL_HANDLE, 0};
    }
    device_of(device)->free(device, memory, callbacks);
    pthread_mutex_unlock(&lock);
}

// -- lost ------------------------------------------------------------------------------------------------

static int is_lost(void) {
    const char *path = getenv("BACKBAY_VULKAN_LOST");
    if (submissions_left < 0) {
        FILE *file = path ? fopen(path, "r") : NULL;
        if (!file) return 0;
        if (fscanf(file, "%ld", &submissions_left) != 1) submissions_left = 0;
        fclose(file);
        unlink(path);
    }
    if (submissions_left == 0) return 1;
    submissions_left--;
    return 0;
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    pthread_mutex_lock(&lock);
    int lost = is_lost();
    pthread_mutex_unlock(&lock);
    count_call(submissions, 1);
    for (uint32_t n = 0; n < count; n++) count_call(command_buffers, infos[n].commandBufferCount);
    return lost ? VK_ERROR_DEVICE_LOST : device_of(queue)->submit(queue, count, infos, fence);
}

// -- the chain of layers ---------------------------------------------------------------------------------

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(
    const VkInstanceCreateInfo *info, const VkAllocationCallbacks *callbacks, VkInstance *instance) {
    VkLayerInstanceCreateInfo *link = (void *)info->pNext;
    while (link && !(link->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO && link->function == VK_LAYER_LINK_INFO))
        link = (void *)link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    next_of_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    return ((PFN_vkCreateInstance)next_of_instance(NULL, "vkCreateInstance"))(info, callbacks, instance);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(
    VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *callbacks, VkDevice *device) {
    VkLayerDeviceCreateInfo *link = (void *)info->pNext;
    while (link && !(link->sType == VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO && link->function == VK_LAYER_LINK_INFO))
        link = (void *)link->pNext;
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetInstanceProcAddr of_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    PFN_vkGetDeviceProcAddr next = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateDevice)of_instance(NULL, "vkCreateDevice"))(physical, info, callbacks, device);
    if (result != VK_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    if (!counts) map_counts();
    Device *place = device_of(*device); // a device that is gone may have had the same table
    for (int n = 0; !place && n < MOST; n++)
        if (!devices[n].key) place = &devices[n];
    if (place)
        *place = (Device){
            *(void **)*device, next, (PFN_vkAllocateMemory)next(*device, "vkAllocateMemory"),
            (PFN_vkFreeMemory)next(*device, "vkFreeMemory"), (PFN_vkQueueSubmit)next(*device, "vkQueueSubmit"),
            (PFN_vkGetFenceStatus)next(*device, "vkGetFenceStatus"),
#define LOOKUP(type, name, short, parameters, arguments) (PFN_##name)next(*device, #name),
            COUNTED(LOOKUP)};
    pthread_mutex_unlock(&lock);
    return place ? VK_SUCCESS : VK_ERROR_TOO_MANY_OBJECTS;
}

EXPORTED VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL faults_of_device(VkDevice device, const char *name) {
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)faults_of_device;
    if (!strcmp(name, "vkAllocateMemory")) return (PFN_vkVoidFunction)allocate;
    if (!strcmp(name, "vkFreeMemory")) return (PFN_vkVoidFunction)give_back;
    if (!strcmp(name, "vkQueueSubmit")) return (PFN_vkVoidFunction)submit;
    if (!strcmp(name, "vkGetFenceStatus")) return (PFN_vkVoidFunction)fence_status;
#define CHOICE(type, called, short, parameters, arguments) \
    if (!strcmp(name, #called)) return (PFN_vkVoidFunction)short;
    COUNTED(CHOICE)
    return device ? device_of(device)->next(device, name) : NULL;
}

EXPORTED VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL faults_of_instance(VkInstance instance, const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (PFN_vkVoidFunction)faults_of_instance;
    if (!strcmp(name, "vkCreateInstance")) return (PFN_vkVoidFunction)create_instance;
    if (!strcmp(name, "vkCreateDevice")) return (PFN_vkVoidFunction)create_device;
    PFN_vkVoidFunction ours = faults_of_device(NULL, name);
    if (ours) return ours;
    return next_of_instance ? next_of_instance(instance, name) : NULL;
}

EXPORTED VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *interface) {
    interface->loaderLayerInterfaceVersion = 2;
    interface->pfnGetInstanceProcAddr = faults_of_instance;
    interface->pfnGetDeviceProcAddr = faults_of_device;
    interface->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
