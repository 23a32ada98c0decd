# The wheel names the libraries that are compiled into it, in .dist-info/sboms (PEP 770). Python
# packages that it requires are not among them.
set(robin_map_VERSION unknown)
set(robin_map_header "${nanobind_DIR}/../ext/robin_map/include/tsl/robin_growth_policy.h")
if(EXISTS "${robin_map_header}")
  set(numbers "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS "${robin_map_header}" line REGEX "#define TSL_RH_VERSION_${part} [0-9]+")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND numbers "${number}")
  endforeach()
  list(JOIN numbers "." robin_map_VERSION)
endif()
set(integrodiff_purl "pkg:pypi/integrodiff@${SKBUILD_PROJECT_VERSION_FULL}")
set(nanobind_purl "pkg:pypi/nanobind@${nanobind_VERSION}")
set(robin_map_purl "pkg:github/tessil/robin-map@v${robin_map_VERSION}")

configure_file("${CMAKE_CURRENT_LIST_DIR}/sbom.cdx.json.in"
               "${CMAKE_CURRENT_BINARY_DIR}/integrodiff.cdx.json" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/integrodiff.cdx.json"
        DESTINATION "${SKBUILD_METADATA_DIR}/sboms")
