//! Determines which object of a process is the program and which the dynamic linker.

use crate::{Address, AuxiliaryVector, ElfKind, LoadedObject, ObjectRole, PageSize};

/// Gives each object its role. `executable` is the index of the object that was executed.
///
/// A program started as `ld.so PROGRAM` has the dynamic linker for its executed file; there the executable is the
/// mapped image that asks for a dynamic linker and can be entered.
pub fn assign_roles(
    objects: &mut [LoadedObject],
    executable: Option<usize>,
    auxiliary: &AuxiliaryVector,
    base_page: PageSize,
) {
    if let Some(linker) = auxiliary.dynamic_linker() {
        for object in objects.iter_mut() {
            if object.bias == linker.0 || object.extent().start().align_down(base_page) == linker {
                object.role = ObjectRole::DynamicLinker;
            }
        }
    }
    let Some(executable) = executable else { return };
    if auxiliary.dynamic_linker().is_none() && is_linker_of_another(objects, executable) {
        objects[executable].role = ObjectRole::DynamicLinker;
        if let Some(program) = program_of_linker(objects, executable) {
            objects[program].role = ObjectRole::Executable;
        }
    } else {
        objects[executable].role = ObjectRole::Executable;
    }
}

fn is_linker_of_another(objects: &[LoadedObject], executable: usize) -> bool {
    let linker = &objects[executable];
    linker.image.is_static()
        && (linker.image.is_dynamic_linker()
            || objects.iter().any(|o| o.image.interpreter.as_deref() == Some(linker.path.as_str())))
}

/// The C library too has an entry and asks for an interpreter, but a program has no soname. Between equals the
/// highest was mapped first.
fn program_of_linker(objects: &[LoadedObject], linker: usize) -> Option<usize> {
    let may_be = |object: &LoadedObject| object.image.interpreter.is_some() && object.image.entry != Address(0);
    (0..objects.len()).filter(|&index| index != linker && may_be(&objects[index])).max_by_key(|&index| {
        let image = &objects[index].image;
        (image.kind == ElfKind::FixedAddress, image.soname.is_none(), objects[index].bias)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElfImage;

    fn object(path: &str, bias: u64, interpreter: Option<&str>, soname: Option<&str>) -> LoadedObject {
        LoadedObject {
            path: path.to_owned(),
            link: None,
            role: ObjectRole::SharedObject,
            bias,
            image: ElfImage {
                machine: 62,
                kind: ElfKind::PositionIndependent,
                entry: Address(0x100),
                headers: None,
                segments: Vec::new(),
                relro: None,
                interpreter: interpreter.map(str::to_owned),
                dynamic: true,
                text_relocations: false,
                soname: soname.map(str::to_owned),
                build_id: None,
            },
        }
    }

    fn started_by_linker() -> Vec<LoadedObject> {
        vec![
            object("/lib/libc.so.6", 0x2000, Some("/lib/ld.so"), Some("libc.so.6")),
            object("/opt/program", 0x1000, Some("/lib/ld.so"), None),
            object("/lib/ld.so", 0x9000, None, Some("ld-linux-x86-64.so.2")),
        ]
    }

    #[test]
    fn the_program_behind_a_linker_is_found() {
        let mut objects = started_by_linker();
        assign_roles(&mut objects, Some(2), &AuxiliaryVector::default(), PageSize::new(4096).unwrap());
        let roles: Vec<_> = objects.iter().map(|o| o.role).collect();
        assert_eq!(roles, [ObjectRole::SharedObject, ObjectRole::Executable, ObjectRole::DynamicLinker]);
    }

    #[test]
    fn a_linker_alone_is_still_the_linker() {
        let mut objects = started_by_linker().split_off(2);
        assign_roles(&mut objects, Some(0), &AuxiliaryVector::default(), PageSize::new(4096).unwrap());
        assert_eq!(objects[0].role, ObjectRole::DynamicLinker);
    }

    #[test]
    fn the_kernel_names_the_linker_of_an_ordinary_program() {
        let mut objects = started_by_linker();
        let words: Vec<u8> = [7_u64, 0x9000].iter().flat_map(|w| w.to_ne_bytes()).collect();
        assign_roles(&mut objects, Some(1), &AuxiliaryVector::parse(&words), PageSize::new(4096).unwrap());
        let roles: Vec<_> = objects.iter().map(|o| o.role).collect();
        assert_eq!(roles, [ObjectRole::SharedObject, ObjectRole::Executable, ObjectRole::DynamicLinker]);
    }
}
