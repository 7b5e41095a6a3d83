//! Forms of the language that a training function may hold: what the attribute does not know must stay what it is.

#![allow(unsafe_code)] // Unsafe blocks are among the forms.
// What nobody would write is legal.
#![allow(unused_braces, redundant_semicolons, unreachable_code)]
#![allow(clippy::all, clippy::pedantic, clippy::nursery)]

use crate::__private::{Dataset, Device, VarStore, note, notes};
use ::std::collections::BTreeMap;
use ddp_macros::distributed;

/// What the scope noted at its end.
fn end() -> String {
    notes().pop().unwrap_or_default()
}

#[distributed]
fn let_else(words: &[&str]) -> Result<i64, String> {
    let [first, rest @ ..] = words else {
        return Err("no words".to_owned());
    };
    let mut sum = 0;
    for word in rest {
        let Ok(number) = word.parse::<i64>() else { continue };
        let Some(next) = number.checked_add(sum) else { break };
        sum = next;
    }
    let Device::Cuda(0) = Device::Cuda(0) else { return Ok(sum) };
    Err((*first).to_owned())
}

#[distributed]
fn chains(a: Option<i64>, b: Result<i64, ()>) -> i64 {
    if let Some(x) = a
        && x > 1
        && let Ok(y) = b
        && !matches!((x, y), (2, z) if z == 2)
    {
        return x + y;
    }
    let mut stack = vec![1, 2, 3];
    while let Some(top) = stack.pop()
        && top > 1
    {}
    stack.len() as i64
}

#[test]
fn patterns_that_leave() {
    assert_eq!(let_else(&["a", "1", "x", "2"]), Ok(3));
    assert_eq!(end(), "left");
    assert_eq!(let_else(&[]), Err("no words".to_owned()));
    assert_eq!(end(), "abandoned");
    assert_eq!(chains(Some(3), Ok(4)), 7);
    assert_eq!(chains(Some(2), Ok(2)), 0);
    assert_eq!(end(), "left");
}

struct Grid<const N: usize>([[i64; N]; N]);

impl<const N: usize> Grid<N> {
    const SIZE: usize = N * N;

    #[distributed]
    fn of<const M: usize, F>(mut make: F) -> Grid<M>
    where
        F: FnMut(usize) -> [i64; M],
        [(); M]: Sized,
    {
        #[repr(transparent)]
        struct Row<const K: usize>([i64; K]);
        impl<const K: usize> From<Row<K>> for [i64; K] {
            fn from(row: Row<K>) -> Self {
                return row.0;
            }
        }
        Grid::<M>(::std::array::from_fn::<_, M, _>(|at| Row::<{ M }>(make(at)).into()))
    }

    #[distributed]
    fn into_rows(self) -> impl Iterator<Item = [i64; N]> + use<N> {
        const ZERO: usize = 0;
        let &[first, ..] = &[const { ZERO + 1 }; N][..] else { unreachable!() };
        assert_eq!(Self::SIZE, N * N);
        self.0.into_iter().skip(first - 1)
    }
}

#[test]
fn const_generics() {
    let grid = Grid::<9>::of::<2, _>(|at| [at as i64; 2]);
    assert_eq!(grid.into_rows().collect::<Vec<_>>(), [[0, 0], [1, 1]]);
    assert_eq!(notes(), ["enter of", "left", "enter into_rows", "left"]);
}

#[distributed]
fn closures(texts: &[&str], data: &Dataset) -> Result<i64, ::std::num::ParseIntError> {
    let mut calls = 0;
    let mut parse = |text: &str| -> Result<i64, ::std::num::ParseIntError> {
        calls += 1;
        if text.is_empty() {
            return Ok(0);
        }
        let number: i64 = text.parse()?;
        Ok(number)
    };
    let sum = texts.iter().map(|text| parse(text)).sum::<Result<i64, _>>()?;
    let batches = move || data.train_iter(2).map(|x| x).count();
    let boxed: Box<dyn FnOnce() -> usize + '_> = Box::new(move || return batches());
    let later = async {
        if calls == 0 {
            return 1;
        }
        2
    };
    drop(later);
    Ok(sum + boxed() as i64)
}

#[test]
fn question_marks_and_returns_of_closures() {
    assert_eq!(closures(&["1", "", "2"], &Dataset), Ok(4));
    let noted = notes();
    assert_eq!(noted[2..], ["shared", "left"], "{noted:?}");
    assert!(closures(&["x"], &Dataset).is_err());
    assert_eq!(notes(), ["enter closures", "abandoned"]);
}

#[distributed]
fn odd_ends(kind: u8) -> i64 {
    let _unit: () = match kind {
        0 => return { 1 },
        1 => {
            return match kind {
                1 => 2,
                _ => return 3,
            };
        }
        2 => {
            return 'found: {
                if kind == 2 {
                    break 'found 4;
                }
                5
            };
        }
        3 => {
            #[allow(clippy::needless_return)]
            return return 6;
        }
        _ => println!(),
    };
    (if kind == 4 { 7 } else { 8 })
        + unsafe {
            // SAFETY: zeros are a number.
            ::std::mem::zeroed::<i64>()
        }
}

#[distributed]
fn ends_in_a_label(rows: &[[i64; 2]]) -> Option<i64> {
    'rows: loop {
        for row in rows {
            for &item in row {
                match item {
                    0 => continue,
                    1 => break 'rows None,
                    other => break 'rows Some(other),
                }
            }
        }
        break None;
    }
}

#[distributed]
fn ends_in_a_macro_in_braces() -> Vec<i64> {
    macro_rules! numbers { ($($number:literal),*) => { vec![$($number),*] } }
    numbers! { 1, 2 }
}

#[distributed]
fn ends_in_a_range(n: i64) -> ::std::ops::RangeInclusive<i64> {
    -n..=n
}

#[distributed]
fn ends_in_a_struct(n: i64) -> ::std::num::Wrapping<i64> {
    ::std::num::Wrapping { 0: n }
}

#[distributed]
fn ends_in_a_cast(n: u8) -> i64 {
    n as i64
}

#[test]
fn values_at_odd_places_leave() {
    assert_eq!([0, 1, 2, 3, 4, 5].map(odd_ends), [1, 2, 4, 6, 7, 8]);
    assert_eq!(notes().iter().filter(|note| *note == "left").count(), 6);
    assert_eq!(ends_in_a_label(&[[0, 0], [0, 5]]), Some(5));
    assert_eq!(ends_in_a_macro_in_braces(), [1, 2]);
    assert_eq!(ends_in_a_range(1), -1..=1);
    assert_eq!(ends_in_a_struct(2).0, 2);
    assert_eq!(ends_in_a_cast(2), 2);
    assert_eq!(notes().iter().filter(|note| *note == "left").count(), 5);
}

#[distributed]
fn attributes(r#type: &VarStore, r#loop: i64) -> Result<i64, String> {
    #[cfg(any())]
    does_not_exist!(r#loop);
    #[cfg(any())]
    for x in nothing {
        does_not_exist(x);
    }
    #[cfg(any())]
    println!("{}", does_not_exist);
    #[cfg(all())]
    println!("{loop}: {0:>1$} {width:?}", r#loop, 4, width = r#type.0,);
    #[cfg(any())]
    return Err("never".to_owned());
    #[allow(clippy::let_unit_value)]
    let () = {
        #[cfg(all())]
        r#type.save(concat!("a", ".ot"))?;
    };
    let by_name = BTreeMap::from([
        ("a", 1),
        #[cfg(any())]
        ("b", 2),
    ]);
    #[allow(clippy::match_single_binding)]
    match by_name.len() {
        #[cfg(any())]
        0 => missing(),
        n => Ok(n as i64 + r#loop),
    }
}

#[test]
fn attributes_on_any_statement() {
    assert_eq!(attributes(&VarStore("v"), 1), Ok(2));
    let expected = [
        "enter attributes",
        "register",
        "println 1:    1 \"v\"",
        "main rank saves",
        "written a.tmp",
        "left",
    ];
    assert_eq!(notes(), expected);
}

/// Another crate's macros.
mod other {
    macro_rules! own_println {
        ($($text:tt)*) => { crate::__private::note(format!("other {}", format_args!($($text)*))) };
    }
    macro_rules! own_info {
        ($($text:tt)*) => { crate::__private::note(format!("info {}", format_args!($($text)*))) };
    }
    pub(super) use {own_info as info, own_println as println};
}

#[distributed]
fn imports(n: i64) -> i64 {
    println!("{n}");
    {
        use other::{self, info};
        info!("{}", n);
        other::println!("{n}");
    }
    use other::println;
    n
}

#[test]
fn macros_that_the_body_imports_are_what_they_were() {
    assert_eq!(imports(3), 3);
    assert_eq!(notes(), ["enter imports", "other 3", "info 3", "other 3", "left"]);
}

#[distributed]
fn items(n: i64) -> i64 {
    note("first");
    mod inner {
        pub(super) trait Double {
            fn double(self) -> Self;
        }
        impl Double for i64 {
            fn double(self) -> Self {
                return self * 2;
            }
        }
    }
    use inner::Double as _;
    static ONE: i64 = {
        let x = 1;
        x
    };
    const fn two() -> i64 {
        return 2;
    }
    enum Kind {
        One = 1,
        Two = two() as isize,
    }
    union Bits {
        whole: u32,
        parts: [u8; 4],
    }
    let bits = Bits { whole: 1 };
    // SAFETY: all bytes are initialised.
    let low = i64::from(unsafe { bits.parts[0] });
    n.double() + ONE + Kind::Two as i64 + Kind::One as i64 + low
}

#[test]
fn items_in_the_body_are_functions_of_their_own() {
    assert_eq!(items(2), 9);
    assert_eq!(notes(), ["enter items", "first", "left"]);
}

#[distributed]
fn unit_values(list: &mut Vec<()>) {
    let () = println!();
    list.push(println!("a"));
    let print = || print!("b");
    print();
    if list.is_empty() { eprintln!() } else { eprint!("{}", r#"c"#) }
}

#[test]
fn prints_are_values() {
    unit_values(&mut Vec::new());
    let expected = ["enter unit_values", "println ", "println a", "print b", "eprint c", "left"];
    assert_eq!(notes(), expected);
}

#[distributed]
fn late(data: &Dataset, yes: bool) -> usize {
    let batches;
    let (mut a, b): (usize, _);
    if yes {
        batches = data.train_iter(3);
        (a, b) = (1, 2);
    } else {
        batches = data.train_iter(4);
        [a, b] = [3, 4];
    }
    a += b;
    for _ in batches {
        a += 1;
    }
    a
}

#[test]
fn late_values() {
    assert_eq!(late(&Dataset, true), 4);
    assert_eq!(late(&Dataset, false), 9);
}
