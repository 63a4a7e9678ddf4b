// A Vulkan layer that makes a device full or lost, so that tests see what a program does then.
//
//     BACKBAY_VULKAN_ROOM=BYTES    allocations that would hold more than this are refused, as on a full device
//     BACKBAY_VULKAN_LOST=FILE     the first process to see FILE removes it; from then on, its devices run as many submissions
//                                  as the number in it, and are lost
//
// software_vulkan.sh compiles it, and lets it be used where BACKBAY_VULKAN_FAULTS=1. A process has one instance and any number
// of devices.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define EXPORTED __attribute__((visibility("default")))
#define MOST 16

typedef struct {
    void *key; // the loader's table, which a device and its queues begin with
    PFN_vkGetDeviceProcAddr next;
    PFN_vkAllocateMemory allocate;
    PFN_vkFreeMemory free;
    PFN_vkQueueSubmit submit;
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
    Device *place = device_of(*device); // a device that is gone may have had the same table
    for (int n = 0; !place && n < MOST; n++)
        if (!devices[n].key) place = &devices[n];
    if (place)
        *place = (Device){
            *(void **)*device, next, (PFN_vkAllocateMemory)next(*device, "vkAllocateMemory"),
            (PFN_vkFreeMemory)next(*device, "vkFreeMemory"), (PFN_vkQueueSubmit)next(*device, "vkQueueSubmit")};
    pthread_mutex_unlock(&lock);
    return place ? VK_SUCCESS : VK_ERROR_TOO_MANY_OBJECTS;
}

EXPORTED VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL faults_of_device(VkDevice device, const char *name) {
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)faults_of_device;
    if (!strcmp(name, "vkAllocateMemory")) return (PFN_vkVoidFunction)allocate;
    if (!strcmp(name, "vkFreeMemory")) return (PFN_vkVoidFunction)give_back;
    if (!strcmp(name, "vkQueueSubmit")) return (PFN_vkVoidFunction)submit;
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
