//! QEMU's interface for plugins (its include/qemu/qemu-plugin.h, the same from 4.2 to 10), and the functions that it
//! calls.

use crate::{calls, ends, executes, exits, returns, touches, translated};
use std::ffi::{c_int, c_uint, c_void};

/// Number of the plugin.
pub type PluginId = u64;
/// Kind and size of a load or store.
pub type MemoryInfo = u32;

/// QEMU's description; not read.
#[repr(C)]
pub struct Info {
    _opaque: [u8; 0],
}

/// A translated block.
#[repr(C)]
pub struct Block {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Instruction {
    _opaque: [u8; 0],
}

/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`.
const LOADS_AND_STORES: c_int = 3;

type OnBlock = unsafe extern "C" fn(PluginId, *mut Block);
type OnExecution = extern "C" fn(c_uint, *mut c_void);
type OnAccess = extern "C" fn(c_uint, MemoryInfo, u64, *mut c_void);
type OnCall = extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
type OnReturn = extern "C" fn(PluginId, c_uint, i64, i64);
type OnThread = extern "C" fn(PluginId, c_uint);
type OnEnd = extern "C" fn(PluginId, *mut c_void);

// SAFETY:
// - the signatures are from qemu-plugin.h; QEMU, which loads the plugin, exports the functions.
unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: OnBlock);
    fn qemu_plugin_register_vcpu_exit_cb(id: PluginId, callback: OnThread);
    fn qemu_plugin_register_vcpu_syscall_cb(id: PluginId, callback: OnCall);
    fn qemu_plugin_register_vcpu_syscall_ret_cb(id: PluginId, callback: OnReturn);
    fn qemu_plugin_register_atexit_cb(id: PluginId, callback: OnEnd, data: *mut c_void);
    fn qemu_plugin_register_vcpu_tb_exec_cb(block: *mut Block, callback: OnExecution, flags: c_int, data: *mut c_void);
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: OnAccess,
        flags: c_int,
        kinds: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_insn_vaddr(instruction: *const Instruction) -> u64;
    fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    fn qemu_plugin_mem_size_shift(info: MemoryInfo) -> c_uint;
    fn qemu_plugin_mem_is_store(info: MemoryInfo) -> bool;
}

/// Registers everything that is called for the plugin as a whole.
pub fn register(id: PluginId) {
    // SAFETY:
    // - the plugin is being installed; the callbacks are functions of this library, which is never unloaded.
    unsafe {
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        qemu_plugin_register_vcpu_syscall_cb(id, calls);
        qemu_plugin_register_vcpu_syscall_ret_cb(id, returns);
        qemu_plugin_register_vcpu_exit_cb(id, ends);
        qemu_plugin_register_atexit_cb(id, exits, std::ptr::null_mut());
    }
}

/// Makes QEMU report the block's executions and its loads and stores. `data` makes the argument of [`executes`] from
/// the pages of the block's first and last byte and the number of its instructions.
///
/// # Safety
/// QEMU has passed the block to a callback of the type [`OnBlock`], which has not returned yet.
pub unsafe fn watch_block(block: *mut Block, page_shift: u32, data: impl FnOnce(u64, u64, usize) -> *mut c_void) {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        let count = qemu_plugin_tb_n_insns(block);
        let first = qemu_plugin_tb_vaddr(block);
        let mut last = first;
        for index in 0..count {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            last = qemu_plugin_insn_vaddr(instruction) + (qemu_plugin_insn_size(instruction) as u64).max(1) - 1;
            let none = std::ptr::null_mut();
            qemu_plugin_register_vcpu_mem_cb(instruction, touches, NO_REGISTERS, LOADS_AND_STORES, none);
        }
        let data = data(first >> page_shift, last >> page_shift, count);
        qemu_plugin_register_vcpu_tb_exec_cb(block, executes, NO_REGISTERS, data);
    }
}

/// Bytes of a load or store.
pub fn size_of_access(info: MemoryInfo) -> u64 {
    // SAFETY:
    // - any number may be passed.
    1 << unsafe { qemu_plugin_mem_size_shift(info) }
}

/// True for a store.
pub fn is_store(info: MemoryInfo) -> bool {
    // SAFETY:
    // - any number may be passed.
    unsafe { qemu_plugin_mem_is_store(info) }
}
